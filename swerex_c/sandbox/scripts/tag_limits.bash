# For the first bash of everything that is started: write the mark into its limits, which its children inherit. This
# changes BASH_REMATCH and $?.
#
# Linux ignores both limits: RLIMIT_LOCKS since 2.4.25, RLIMIT_RSS (which bash counts in KiB) since 2.4.30. A value near
# 2^50 is not mistaken for a real limit. Where a lower limit is in force, `ulimit` fails harmlessly.
if [[ ${SWEREX_C_MARK-} =~ ^[0-9a-f]{24}\.[0-9a-f]{24}$ ]]; then {
builtin ulimit -x $((0x4000000000000 + 0x${SWEREX_C_MARK:0:12}))
builtin ulimit -m $((0x4000000000000 + 0x${SWEREX_C_MARK:25:12}))
} 2>/dev/null; fi
