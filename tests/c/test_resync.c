/* Sessions over a client whose owner sees the shell at its prompt by itself, and says so. */
#include "client.h"

static uint64_t commands_of(swx_session *s) { return swx_session_look(s).commands; }

static bool doubt(swx_session *s) { return swx_session_resync(s, commands_of(s), now()); }

/* Waits until a process waits in a read of its standard input. */
static void wait_for_read(swx_session *s, pid_t pid)
{
    swx_kernel kernel;
    swx_kernel_open(&kernel, pid);
    for (int64_t limit = now() + PATIENCE; swx_kernel_learn(&kernel) != SWX_OK; rest(s, MS)) {
        CHECK(now() < limit);
    }
    swx_kernel_close(&kernel);
}

/* Until the START mark of what runs has come. */
static void wait_until_doubtful(swx_session *s) { TURN_UNTIL(s, swx_session_look(s).doubtful) }

static pid_t shell_of(swx_session *s)
{
    swx_op op = operation(SWX_OP_RUN, "echo $$\n");
    char text[32] = { 0 };
    complete(s, &op);
    CHECK(op.end == SWX_END_DONE && op.output.size < sizeof(text));
    swx_buf_copy(&op.output, "", (uint8_t *)text);
    swx_buf_free(&op.output);
    return (pid_t)atoi(text);
}

#define GONE "unset PROMPT_COMMAND PS0 PS1 PS2; "

/* The end of a command after which no prompt shows, and what comes after it. */
static void test_prompts_are_gone(void)
{
    static const char *const lines[] = {
        GONE "echo out; (exit 7)\n", "unset PROMPT_COMMAND PS0 PS2; PS1='mine> '; echo out; (exit 7)\n",
        "unset PROMPT_COMMAND; readonly PS1='mine> '; echo out; (exit 7)\n",
        "unset PROMPT_COMMAND; readonly PS0=x PS1='mine> ' PS2=y; echo out; (exit 7)\n"
    };
    for (size_t i = 0; i < SWX_COUNT(lines); i++) {
        swx_session *s = open_client();
        pid_t shell = shell_of(s);
        swx_op op = operation(SWX_OP_RUN, lines[i]);
        submit(s, &op);
        wait_until_doubtful(s);
        wait_for_read(s, shell);
        CHECK(op.end == SWX_END_NONE && swx_session_look(s).doubtful);
        CHECK(!swx_session_resync(s, commands_of(s) + 1, now()) && !swx_session_resync(s, commands_of(s) - 1, now()));
        CHECK(doubt(s) && !doubt(s) && !swx_session_look(s).doubtful);
        AWAIT(s, &op, SWX_END_DONE, 7, "out\n");
        expect_run(s, "echo $? $_\n", 0, NULL);
        expect_run(s, "echo two; (exit 5)\n", 5, "two\n");
        expect_run(s, "echo $?\n", 0, "5\n");
        close_session(s);
    }
}

/* Where the terminal shows what is typed, the question is no output. */
static void test_echo(void)
{
    swx_session *s = open_client();
    pid_t shell = shell_of(s);
    swx_op op = operation(SWX_OP_RUN, "stty echo\n");
    op.hints = SWX_SCAN_STTY;
    COMPLETE(s, &op, SWX_END_DONE, 0, "");
    op = operation(SWX_OP_RUN, "unset PROMPT_COMMAND PS0 PS2; PS1='mine> '; echo out; (exit 7)\n");
    submit(s, &op);
    wait_until_doubtful(s);
    wait_for_read(s, shell);
    CHECK(doubt(s));
    AWAIT(s, &op, SWX_END_DONE, 7, "out\n");
    expect_run(s, "echo two\n", 0, "two\n");
    close_session(s);
}

/* The shell is seen at its prompt, and what it printed is still on its way: none of it is lost, none of it is
 * another's. */
static void test_output_on_its_way(void)
{
    static const char *const lines[] = { "sleep 0.5; seq 300; (exit 3)\n", GONE "sleep 0.5; seq 300; (exit 3)\n",
                                         "PS1='mine> '$PS1; sleep 0.5; seq 300; (exit 3)\n" };
    char wanted[4096];
    for (size_t i = 0; i < SWX_COUNT(lines); i++) {
        swx_session *s = open_client();
        pid_t shell = shell_of(s);
        swx_op op = operation(SWX_OP_RUN, lines[i]), after = operation(SWX_OP_RUN, "echo after\n");
        submit(s, &op);
        submit(s, &after);
        wait_until_doubtful(s);
        CHECK(kill(swx_session_pid(s), SIGSTOP) == 0);
        wait_for_read(s, shell);
        CHECK(doubt(s));
        rest(s, 20 * MS);
        CHECK(kill(swx_session_pid(s), SIGCONT) == 0);
        for (int n = 1, at = 0; n <= 300; n++) {
            at += snprintf(wanted + at, sizeof(wanted) - (size_t)at, "%d\n", n);
        }
        wait_for(s, &op);
        wait_for(s, &after);
        EXPECT(&op, SWX_END_DONE, 3, wanted);
        EXPECT(&after, SWX_END_DONE, 0, "after\n");
        for (int n = 0; n < 3; n++) {
            expect_run(s, "echo more; (exit 4)\n", 4, "more\n");
        }
        CHECK(commands_of(s) == 7);
        close_session(s);
    }
}

/* What is typed is on its way, and the shell waits at its prompt for it: that is no doubt, or the question would be
 * read by the command. */
static void test_command_on_its_way(void)
{
    swx_session *s = open_client();
    pid_t shell = shell_of(s);
    CHECK(!doubt(s) && !swx_session_look(s).doubtful);
    swx_op op = operation(SWX_OP_RUN, "read -r x; echo got $x\n");
    CHECK(kill(swx_session_pid(s), SIGSTOP) == 0);
    submit(s, &op);
    rest(s, 50 * MS);
    wait_for_read(s, shell);
    CHECK(!swx_session_look(s).doubtful && !doubt(s));
    CHECK(kill(swx_session_pid(s), SIGCONT) == 0);
    wait_until_doubtful(s);
    CHECK(swx_session_type(s, (const uint8_t *)"a line\n", 7, now()) == SWX_OK);
    CHECK(!doubt(s)); /* which may be on its way, too */
    AWAIT(s, &op, SWX_END_DONE, 0, "got a line\n");
    close_session(s);
}

/* Where nothing tells that a command was read, as PROMPT_COMMAND marks the ends instead, it may be on its way for some
 * time. */
static void test_without_start(void)
{
    swx_session *s = open_client();
    swx_op op = operation(SWX_OP_RUN, "exec 2>/dev/null\n");
    int64_t begin = now();
    op.hints = SWX_HINT_STDERR;
    COMPLETE(s, &op, SWX_END_DONE, 0, "");
    CHECK(now() - begin < 1900 * MS); /* nobody waits for a prompt behind the guard, of which there is none */
    op = operation(SWX_OP_RUN, "read -r x; echo got $x\n");
    submit(s, &op);
    CHECK(!doubt(s));
    rest(s, 50 * MS);
    CHECK(!doubt(s));
    CHECK(swx_session_type(s, (const uint8_t *)"a line\n", 7, now()) == SWX_OK);
    CHECK(!doubt(s));
    AWAIT(s, &op, SWX_END_DONE, 0, "got a line\n");
    op = operation(SWX_OP_RUN, "unset PROMPT_COMMAND; echo out; (exit 7)\n");
    op.hints = SWX_HINT_SOURCE;
    submit(s, &op);
    CHECK(swx_session_look(s).doubtful && !doubt(s));
    rest(s, 1600 * MS);
    CHECK(doubt(s));
    AWAIT(s, &op, SWX_END_DONE, 7, "out\n");
    close_session(s);
}

/* A session's own shell is looked at by the session itself. */
static void test_no_client(void)
{
    swx_session *s = begin(NULL);
    swx_op start = operation(SWX_OP_START, ":"), op = operation(SWX_OP_RUN, "read -r -t 0.2 x; echo \"<$x>\"\n");
    COMPLETE(s, &start, SWX_END_DONE, 0, "");
    submit(s, &op);
    rest(s, 50 * MS);
    CHECK(!swx_session_look(s).doubtful && !doubt(s));
    AWAIT(s, &op, SWX_END_DONE, 0, "<>\n");
    close_session(s);
}

TRANSPORT_MAIN(test_prompts_are_gone, test_echo, test_output_on_its_way, test_command_on_its_way, test_without_start,
               test_no_client)
