/* What is not the command's own at its end: our line in PROMPT_COMMAND, and what others print. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "turns.h"
#include "swx_alloc.h"

/* Only our own text is taken away, not what stands before it in the same line. */
static void test_trace_behind_unfinished_lines(void)
{
    swx_session *s = open_configured(1 << 20, true);
    expect_run(s, "set -x\n", 0, "");
    expect_run(s, "printf abc\n", 0, "+ printf abc\nabc");
    expect_run(s, "printf '\\n\\nabc'; (exit 3)\n", 3, "+ printf '\\n\\nabc'\n\n\nabc+ exit 3\n");
    expect_run(s, "PS4='<$LINENO>'\n", 0, NULL);
    expect_run(s, "printf abc >&2; { set +x; } 2>/dev/null\n", 0, NULL);
    expect_run(s, "PS4='+ '; BASH_XTRACEFD=1; set -x\n", 0, "");
    expect_run(s, "printf abc\n", 0, "+ printf abc\nabc");
    expect_run(s, "{ set +x; unset BASH_XTRACEFD; } >/dev/null\n", 0, NULL);
    expect_run(s, "set -v\n", 0, "");
    expect_run(s, "printf abc\n", 0, "abc");
    expect_run(s, "set +v\n", 0, "");
    expect_run(s, "declare -p PROMPT_COMMAND | grep -c PROMPT_COMMAND\n", 0, "1\n");
    swx_op op = operation(SWX_OP_RUN, "echo a; declare -p PROMPT_COMMAND\n");
    complete(s, &op);
    CHECK(op.end == SWX_END_DONE && op.output.size > 30); /* who asks for it gets it */
    swx_buf_free(&op.output);
    close_session(s);
}

/* A command ends although its helper never reads and a job of the background never stops printing. */
static void test_noise_beside_a_helper(void)
{
    static const char *const helpers[] = { "exec > >(sleep 1000)\n", "exec > >(cat)\n" };
    static const char *const noises[] = { "(while :; do echo x >&2; sleep 0.3; done) &\n",
                                          "(while :; do echo x >&2; sleep 0.002; done) &\n" };
    for (size_t i = 0; i < SWX_COUNT(helpers); i++) {
        swx_session *s = open_session(1 << 20);
        const char *lines[] = { helpers[i], "echo unread\n", noises[i], "true\n" };
        for (size_t j = 0; j < SWX_COUNT(lines); j++) {
            swx_op op = operation(SWX_OP_RUN, lines[j]);
            op.hints = j ? 0 : SWX_HINT_SETTLE;
            op.deadline = now() + 8000 * MS;
            complete(s, &op);
            CHECK(op.end == SWX_END_DONE && op.code == 0);
            swx_buf_free(&op.output);
        }
        close_session(s);
    }
}

TEST_MAIN(test_trace_behind_unfinished_lines, test_noise_beside_a_helper)
