# Replace this shell with a fresh bash that runs $1, which is program.bash. $2 is 1 if the sandbox's environment is not
# wanted. Only a shell that is not a subshell can distinguish a failed `exec` from a program that ran. A fresh bash
# keeps nothing of the sandbox's environment, not even variables that no shell can unset. Its warning about a locale
# that the sandbox lacks is not output of the program.
if [[ -w /dev/null ]]; then exec 8>&2 2>/dev/null; else exec 8>&2; fi
swx_restore
if (($2)); then
  # shellcheck disable=SC2154 # the loader sets it
  exec -c "$BASH" --noprofile --norc -p -c "$1" swerex "$swx_tagged" "$SWEREX_C_MARK"
else
  exec "$BASH" --noprofile --norc -p -c "$1"
fi
