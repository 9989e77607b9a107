/* Sessions over a client: how they start and end, what is refused, and interrupts.  How they behave else is shown
 * by tests/behaviour in a place of that kind: see tests/sandbox/test_behaviour.py. */
#include "client.h"
#include "alloc.h"

/* The nonce that stands in the client's environment, and in the shell's, is not the one that decides. */
static void test_fresh_nonce(void)
{
    swx_session *s = open_client();
    expect_run(s, "n=${PS1#*7733;}; n=${n%%;*}; echo ${#n}; tr '\\0' '\\n' </proc/$$/environ | grep -c \"$n\"\n", 1,
               "16\n0\n");
    expect_run(s, "tr '\\0' '\\n' </proc/$PPID/environ | grep -c -e '^PS1=.*7733;'\n", 0, "1\n");
    close_session(s);
}

/* How a start behind `argv` ends: NULL stands for /bin/sh -c with `script` as its text. */
static void expect_start(char *const *argv, const char *script, swx_end end, int code, const char *output)
{
    char *const shell[] = { (char[]){ "/bin/sh" }, (char[]){ "-c" }, (char *)script, (char[]){ "sh" }, NULL };
    swx_session *s = begin(argv ? argv : shell);
    swx_op start = operation(SWX_OP_START, argv ? script : ":");
    start.step = start.patience = 2000 * MS;
    complete(s, &start);
    CHECK(start.typed_out == (end == SWX_END_DONE));
    EXPECT(&start, end, code, output);
    if (end == SWX_END_DONE) {
        expect_run(s, "echo hi\n", 0, "hi\n");
    }
    close_session(s);
}

static void test_startup(void)
{
    char *const missing[] = { client_argv[0], client_argv[1], (char[]){ "/no/such/bash" }, NULL };
    expect_start(client_argv, "echo said; printf 'and\\n' >&2; PS1='$ '", SWX_END_DONE, 0, "said\nand\n");
    expect_start(missing, ":", SWX_END_DIED, 127, "client: exec: \"/no/such/bash\": executable file not found\r\n");
    expect_start(NULL, "echo 'No such container: x' >&2; exit 126", SWX_END_DIED, 126, "No such container: x\n");
    expect_start(NULL, "printf Password:; exec sleep 50", SWX_END_LOST, 0, "Password:");
    char *const none[] = { (char[]){ "/no/such/client" }, NULL };
    swx_session_config config = configuration(100);
    swx_session *s;
    swx_error err;
    config.program = none[0];
    config.argv = none;
    CHECK(swx_session_new(&s, &config, now(), &err) == SWX_ESYS && s == NULL);
}

/* The first prompt may take longer than the script, whose time begins then. */
static void test_a_slow_start(void)
{
    char self[4096] = { 0 }, *slow[16] = { (char[]){ "/bin/sh" }, (char[]){ "-c" },
                                           (char[]){ "sleep 2.2; exec \"$@\"" }, (char[]){ "sh" }, self };
    CHECK(readlink(client_argv[0], self, sizeof(self) - 1) > 0);
    memcpy(slow + 5, client_argv + 1, sizeof(client_argv) - sizeof(*client_argv));
    swx_session *s = begin(slow);
    swx_op start = operation(SWX_OP_START, "echo up; sleep 50");
    start.step = 2000 * MS;
    start.patience = 20000 * MS;
    COMPLETE(s, &start, SWX_END_TIMEOUT, 0, "up\n");
    close_session(s);
}

/* Interrupts that come when the command ends by itself: the second prompt is nobody's. */
static void test_interrupts_at_the_end(void)
{
    swx_session *s = open_client();
    for (int i = 0; i < 30; i++) {
        swx_op op = operation(SWX_OP_RUN, "sleep 0.13\n"), stop = operation(SWX_OP_INTERRUPT, ""),
               after = operation(SWX_OP_RUN, "echo after\n");
        submit(s, &op);
        submit(s, &after);
        rest(s, 125 * MS + i * MS / 3);
        submit(s, &stop);
        wait_for(s, &after);
        wait_for(s, &stop);
        CHECK(op.end == SWX_END_DONE && (op.code == 0 || op.code == 130) && stop.end == SWX_END_DONE);
        CHECK(after.end == SWX_END_DONE && (after.code == 0 || after.code == 130));
        swx_buf_free(&op.output);
        swx_buf_free(&stop.output);
        swx_buf_free(&after.output);
        expect_run(s, "echo $((6 * 7))\n", 0, "42\n");
    }
    close_session(s);
}

/* Nobody says that the shell is at its prompt: PROMPT_COMMAND is armed where the startup may change prompts later. */
static void test_what_the_startup_leaves(void)
{
    static const char *const startup[] = { "PROMPT_COMMAND='PS1=user\\>'; activate() { :; }",
                                           "activate() { PS1='(venv) '; }", "alias activate='PS1=x'",
                                           "trap 'PS1=x' USR1; activate() { kill -USR1 $$; }" };
    for (size_t i = 0; i < SWX_COUNT(startup); i++) {
        swx_session *s = open_behind(client_argv, startup[i]);
        expect_run(s, "activate\n", 0, "");
        expect_run(s, "echo two; (exit 6)\n", 6, "two\n");
        close_session(s);
    }
}

/* What is refused changes nothing: neither the program's line nor its output. */
static void test_refusals(void)
{
    swx_session *s = open_client();
    swx_op op = operation(SWX_OP_RUN, "{\ntrue\n}\n");
    op.raw = true;
    submit(s, &op);
    EXPECT(&op, SWX_END_SYSTEM, 0, "");
    CHECK(op.error.status == SWX_ELIMIT);
    op = operation(SWX_OP_RUN, "read -r x; echo got $x\n");
    op.deadline = now() + 100 * MS;
    COMPLETE(s, &op, SWX_END_TIMEOUT, 0, "");
    char much[5001];
    memset(much, 'y', sizeof(much) - 1);
    much[sizeof(much) - 1] = 0;
    op = operation(SWX_OP_LINE, much);
    complete(s, &op);
    CHECK(op.error.status == SWX_ELIMIT && !op.typed_out);
    EXPECT(&op, SWX_END_SYSTEM, 0, "");
    op = operation(SWX_OP_LINE, "a line\n");
    COMPLETE(s, &op, SWX_END_DONE, 0, "got a line\n");
    close_session(s);
}

static void test_ends(void)
{
    swx_session *s = open_client();
    swx_op op = operation(SWX_OP_RUN, "echo before; sleep 100\n");
    submit(s, &op);
    wait_for_output(s, &op, 7);
    CHECK(kill(swx_session_pid(s), SIGKILL) == 0);
    AWAIT(s, &op, SWX_END_DIED, 137, "before\n");
    CHECK(op.signal == SIGKILL);
    close_session(s);
    /* An idle shell is told that its input has ended: its EXIT trap runs, and it outlives nothing. */
    char name[] = "/tmp/swx-client-XXXXXX", line[128], said[16] = { 0 };
    int file = mkstemp(name);
    CHECK(file >= 0);
    s = open_client();
    snprintf(line, sizeof(line), "trap 'echo left >%s' EXIT\n", name);
    expect_run(s, line, 0, "");
    close_session(s);
    CHECK(read(file, said, sizeof(said) - 1) == 5 && strcmp(said, "left\n") == 0);
    close(file);
    unlink(name);
}

#ifdef SWX_ALLOC_TEST
/* A start and a command while allocation number i fails.  True when it did not come to that. */
static bool session_with_failure(unsigned long i)
{
    swx_session_config config = configuration(1 << 20);
    config.program = client_argv[0];
    config.argv = client_argv;
    swx_session *s;
    swx_error err;
    swx_alloc_fail_at(i, 0);
    if (swx_session_new(&s, &config, now(), &err) != SWX_OK) {
        swx_alloc_fail_at(0, 0);
        CHECK(err.status == SWX_ENOMEM);
        return false;
    }
    swx_op start = operation(SWX_OP_START, ":"), op = operation(SWX_OP_RUN, "echo hi; PS1=; (exit 3)\n"),
           stop = operation(SWX_OP_CLOSE, "");
    op.hints = SWX_HINT_PROMPT | SWX_SCAN_STTY;
    complete(s, &start);
    if (start.end == SWX_END_DONE) { /* else half of the script may have been typed */
        complete(s, &op);
    }
    bool good = swx_alloc_count() < i;
    swx_alloc_fail_at(0, 0);
    CHECK(start.end == SWX_END_DONE || start.end == SWX_END_MEMORY || start.end == SWX_END_LOST);
    CHECK(op.end == SWX_END_DONE ? op.code == 3
                                 : op.end == SWX_END_MEMORY || op.end == SWX_END_LOST || op.end == SWX_END_NONE);
    CHECK(!good || op.end == SWX_END_DONE);
    complete(s, &stop);
    swx_buf_free(&start.output);
    swx_buf_free(&op.output);
    swx_buf_free(&stop.output);
    swx_session_free(s);
    return good;
}
#endif

static void test_no_memory(void)
{
#ifdef SWX_ALLOC_TEST
    long live = swx_alloc_live();
    for (unsigned long i = 1; !session_with_failure(i); i++) {
        CHECK(swx_alloc_live() == live && i < 1000);
    }
    CHECK(swx_alloc_live() == live);
#endif
}

TRANSPORT_MAIN(test_fresh_nonce, test_startup, test_a_slow_start, test_interrupts_at_the_end,
               test_what_the_startup_leaves, test_refusals, test_ends, test_no_memory)
