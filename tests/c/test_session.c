/* The session alone, in one thread: this file is the event loop. */
#include "swx_session.h"

#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "swx_alloc.h"

extern char **environ;

#define MS INT64_C(1000000)

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void noted(swx_op *op) { (void)op; }

/* One turn of the loop; `limit` is when to come back at the latest. */
static void turn(swx_session *s, int64_t limit)
{
    int64_t due = swx_session_deadline(s), t = now();
    due = due < limit ? due : limit;
    struct pollfd fds[2] = {
        { .fd = swx_session_terminal(s), .events = POLLIN | (swx_session_wants_write(s) ? POLLOUT : 0) },
        { .fd = swx_session_pidfd(s), .events = swx_session_look(s).dead ? 0 : POLLIN },
    };
    struct timespec wait = { .tv_sec = 0, .tv_nsec = 0 };
    if (due > t) {
        wait.tv_sec = (due - t) / INT64_C(1000000000);
        wait.tv_nsec = (due - t) % INT64_C(1000000000);
    }
    ppoll(fds, 2, &wait, NULL);
    t = now();
    if (fds[0].revents & POLLIN) {
        swx_session_readable(s, t);
    }
    if (fds[0].revents & POLLOUT) {
        swx_session_writable(s, t);
    }
    if (fds[1].revents & POLLIN) {
        swx_session_ended(s, t);
    }
    if (swx_session_deadline(s) <= t) {
        swx_session_due(s, t);
    }
}

static void wait_for(swx_session *s, const swx_op *op)
{
    int64_t limit = now() + 20000 * MS;
    while (op->end == SWX_END_NONE) {
        CHECK(now() < limit);
        turn(s, limit);
    }
}

static void rest(swx_session *s, int64_t length)
{
    int64_t until = now() + length;
    while (now() < until) {
        turn(s, until);
    }
}

static swx_op operation(swx_op_kind kind, const char *typed)
{
    return (swx_op){ .kind = kind,
                     .typed = (const uint8_t *)typed,
                     .typed_size = strlen(typed),
                     .deadline = SWX_NEVER,
                     .step = kind == SWX_OP_START ? SWX_NEVER : 100 * MS,
                     .tries = 3,
                     .done = noted };
}

static swx_session *open_session(size_t limit)
{
    swx_session_config config = { .shell = "/bin/bash", .environment = environ, .rows = 24, .columns = 80, .output_limit = limit };
    swx_session *s;
    swx_error err;
    CHECK(swx_session_new(&s, &config, now(), &err) == SWX_OK);
    swx_op start = operation(SWX_OP_START, ":");
    swx_session_submit(s, &start, now());
    wait_for(s, &start);
    CHECK(start.end == SWX_END_DONE);
    swx_buf_free(&start.output);
    return s;
}

static void close_session(swx_session *s)
{
    swx_op close = operation(SWX_OP_CLOSE, "");
    swx_session_submit(s, &close, now());
    wait_for(s, &close);
    swx_buf_free(&close.output);
    swx_session_free(s);
}

/* Runs a line and compares what came. */
static void expect_run(swx_session *s, const char *line, int code, const char *output)
{
    swx_op op = operation(SWX_OP_RUN, line);
    swx_session_submit(s, &op, now());
    wait_for(s, &op);
    char got[65536] = { 0 };
    CHECK(op.output.size < sizeof(got));
    swx_buf_copy(&op.output, (uint8_t *)got);
    if (op.end != SWX_END_DONE || op.code != code || strcmp(got, output) != 0) {
        fprintf(stderr, "%s: end %d code %d output <%s>, wanted %d <%s>\n", line, (int)op.end, op.code, got, code, output);
        exit(1);
    }
    swx_buf_free(&op.output);
}

static void test_commands(void)
{
    swx_session *s = open_session(1 << 20);
    expect_run(s, "true\n", 0, "");
    expect_run(s, "echo hi\n", 0, "hi\n");
    expect_run(s, "(exit 3)\n", 3, "");
    expect_run(s, "echo $?\n", 0, "3\n");
    expect_run(s, "\n", 0, "");
    expect_run(s, "false\n", 1, "");
    expect_run(s, "# nothing\n", 1, "");
    expect_run(s, "{\necho 'a\tb' !x\ncat <<E\nin\nE\n}\n", 0, "a\tb !x\nin\n");
    expect_run(s, "printf x\n", 0, "x");
    expect_run(s, "seq 20000 | tail -1; /bin/echo out; sleep 0.01\n", 0, "20000\nout\n");
    expect_run(s, "env | grep -c '^PS[012]='\n", 1, "0\n");
    CHECK(swx_session_look(s).kernel_proof && swx_session_look(s).challenges == 0);
    close_session(s);
}

static void test_prompts_are_taken_away(void)
{
    swx_session *s = open_session(1 << 20);
    expect_run(s, "printf out; PS1='$ '; (exit 7)\n", 7, "out");
    CHECK(swx_session_look(s).challenges == 1);
    expect_run(s, "echo $?\n", 0, "7\n");
    expect_run(s, "unset PS0\n", 0, "");
    expect_run(s, "echo a\n", 0, "a\n");
    expect_run(s, "false | true | (exit 4); PS1='> '\n", 0, "");
    expect_run(s, "true a b | false; PS1=x PS0=y PS2=z\n", 0, "");
    expect_run(s, "PS1=; false | true\n", 0, "");
    expect_run(s, "echo ${PIPESTATUS[@]}\n", 0, "1 0\n");
    expect_run(s, "shopt -u promptvars; (exit 9)\n", 9, "");
    expect_run(s, "echo $?\n", 0, "9\n");
    expect_run(s, "readonly PS1='ro> '\n", 0, "");
    expect_run(s, "echo still; (exit 6)\n", 6, "still\n");
    close_session(s);
    s = open_session(1 << 20);
    expect_run(s, "PROMPT_COMMAND='PS1=mine\\>'\n", 0, "");
    expect_run(s, "echo one\n", 0, "one\n");
    expect_run(s, "echo two; (exit 5)\n", 5, "two\n");
    uint64_t challenges = swx_session_look(s).challenges;
    expect_run(s, "echo three $?\n", 0, "three 5\n");
    CHECK(swx_session_look(s).challenges == challenges);
    close_session(s);
    s = open_session(1 << 20);
    expect_run(s, "exec 2>/dev/null\n", 0, "");
    expect_run(s, "echo quiet; (exit 2)\n", 2, "quiet\n");
    expect_run(s, "exec >/dev/null; echo none\n", 0, "");
    expect_run(s, "(exit 3)\n", 3, "");
    close_session(s);
    s = open_session(1 << 20);
    expect_run(s, "set -o emacs; false\n", 1, "\033[?2004h"); /* readline wakes up: a sequence, no text */
    expect_run(s, "echo 'a\tb'\n", 0, "a\tb\n");
    expect_run(s, "set -e\n", 0, "");
    expect_run(s, "PS1=\n", 0, "");
    expect_run(s, "echo lives\n", 0, "lives\n");
    close_session(s);
}

/* A program that knows the nonce and prints perfect marks: the number of the real one, another exit code. */
static void test_forged_marks(void)
{
    swx_session *s = open_session(1 << 20);
    char line[512];
    expect_run(s, "N=${PS1#*7733;}; N=${N%%;*}; mark() { local a=${PS1@P}; a=${a#*;*;*;*;}; "
                  "printf 'x\\e]7733;%s;1;%d;%d;0;%d;%d\\a' $N $1 $(( ${a%%;*} + $2 )) ${#PS1} ${#PS0}; }\n", 0, "");
    for (int ahead = 0; ahead < 3; ahead++) {
        uint64_t challenges = swx_session_look(s).challenges;
        snprintf(line, sizeof(line), "mark 42 %d; sleep 0.1; printf end; (exit 5)\n", ahead);
        expect_run(s, line, 5, "xend");
        expect_run(s, "echo $?\n", 0, "5\n");
        CHECK(swx_session_look(s).challenges == challenges + (ahead == 1));
        /* a challenge has changed the nonce */
        expect_run(s, "N=${PS1#*7733;}; N=${N%%;*}\n", 0, "");
    }
    expect_run(s, "mark 42 1; mark 42 1; mark 43 1\n", 0, "xxx");
    close_session(s);
}

static void test_jobs(void)
{
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(SWX_OP_RUN, "sleep 0.05 & sleep 0.1 &\n");
    swx_session_submit(s, &op, now());
    wait_for(s, &op);
    CHECK(op.end == SWX_END_DONE && op.output.size > 4);
    swx_buf_free(&op.output);
    rest(s, 70 * MS);
    expect_run(s, "echo x\n", 0, "x\n");           /* one ended while nothing ran */
    expect_run(s, "sleep 0.1\n", 0, "");           /* the other one meanwhile */
    op = operation(SWX_OP_RUN, "sleep 10 &\n");
    swx_session_submit(s, &op, now());
    wait_for(s, &op);
    swx_buf_free(&op.output);
    expect_run(s, "printf '[1]+  Done                    sleep 1\\n'\n", 0, "[1]+  Done                    sleep 1\n");
    close_session(s);
}

static void test_timeout_and_interrupt(void)
{
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(SWX_OP_RUN, "echo begin; sleep 100\n");
    op.deadline = now() + 50 * MS;
    swx_session_submit(s, &op, now());
    wait_for(s, &op);
    CHECK(op.end == SWX_END_TIMEOUT && op.output.size == 6);
    swx_buf_free(&op.output);
    op = operation(SWX_OP_RUN, "echo never\n");
    op.deadline = now() + 50 * MS;
    swx_session_submit(s, &op, now());
    wait_for(s, &op);
    CHECK(op.end == SWX_END_TIMEOUT && !op.typed_out && op.output.size == 0);
    swx_op stop = operation(SWX_OP_INTERRUPT, "");
    int64_t t = now();
    swx_session_submit(s, &stop, t);
    wait_for(s, &stop);
    CHECK(stop.end == SWX_END_DONE && now() - t < 50 * MS);
    swx_buf_free(&stop.output);
    expect_run(s, "echo $?\n", 0, "130\n");
    op = operation(SWX_OP_RUN, "trap '' INT; sleep 100\n");
    op.deadline = now() + 20 * MS;
    swx_session_submit(s, &op, now());
    wait_for(s, &op);
    swx_buf_free(&op.output);
    stop = operation(SWX_OP_INTERRUPT, "");
    stop.step = 20 * MS;
    swx_session_submit(s, &stop, now());
    wait_for(s, &stop);
    CHECK(stop.end == SWX_END_DONE);
    swx_buf_free(&stop.output);
    expect_run(s, "echo $?; trap - INT\n", 0, "137\n");
    close_session(s);
}

static void test_death(void)
{
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(SWX_OP_RUN, "echo last; exit 3\n");
    swx_session_submit(s, &op, now());
    wait_for(s, &op);
    CHECK(op.end == SWX_END_DIED && op.code == 3 && op.output.size >= 5);
    swx_buf_free(&op.output);
    op = operation(SWX_OP_RUN, "echo\n");
    swx_session_submit(s, &op, now());
    CHECK(op.end == SWX_END_DIED && op.code == 3);
    close_session(s);
    s = open_session(1 << 20);
    op = operation(SWX_OP_RUN, "setsid sleep 1000 & (setsid sleep 1000 &) ; kill -9 $$\n");
    swx_session_submit(s, &op, now());
    wait_for(s, &op);
    CHECK(op.end == SWX_END_DIED && op.code == 128 + SIGKILL);
    swx_buf_free(&op.output);
    close_session(s);
}

TEST_MAIN(test_commands, test_prompts_are_taken_away, test_forged_marks, test_jobs, test_timeout_and_interrupt, test_death)
