/* Streams whose reader is slow: the ends of commands that are heard all the same.  All else of such readers is in
 * tests/runtime/test_slow_reader.py. */
#include "client.h"

#include <stdlib.h>

enum { LIMIT = 1 << 20 };

static swx_op streamed(const char *line)
{
    swx_op op = operation(SWX_OP_RUN, line);
    op.stream = true;
    op.news = noted;
    return op;
}

/* What `seq` prints, as far as it was taken: `next` is the last whole number. */
typedef struct {
    unsigned long next, number;
    size_t total;
} counted;

static void count_on(counted *c, const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\n') {
            CHECK(c->number == ++c->next);
            c->number = 0;
        } else {
            CHECK(bytes[i] >= '0' && bytes[i] <= '9'); /* a note has other letters */
            c->number = 10 * c->number + bytes[i] - '0';
        }
    }
    c->total += size;
}

static size_t take(swx_session *s, swx_op *op, counted *c, size_t room)
{
    static uint8_t bytes[LIMIT];
    CHECK(room <= sizeof(bytes));
    size_t size = swx_session_take(s, op, bytes, room, now());
    count_on(c, bytes, size);
    return size;
}

static void take_all(swx_session *s, swx_op *op, counted *c)
{
    while (take(s, op, c, LIMIT)) {
    }
}

/* Until the terminal is read no more. */
static void wait_until_held(swx_session *s)
{
    TURN_UNTIL(s, !swx_session_wants_read(s))
    unsigned turns = 0;
    for (int64_t until = now() + 20 * MS; now() < until; turns++) { /* it stays so, and nothing turns meanwhile */
        turn(s, until);
        CHECK(!swx_session_wants_read(s));
    }
    CHECK(turns < 30);
}

/* Until the shell has the terminal again, and sleeps: in the read of its prompt. */
static void wait_until_back(swx_session *s, const swx_op *op)
{
    pid_t shell = swx_session_pid(s);
    for (int64_t limit = now() + PATIENCE; tcgetpgrp(swx_session_terminal(s)) != shell || !swx_kernel_sleeps(shell);) {
        CHECK(op->end == SWX_END_NONE);
        CHECK(now() < limit);
        turn(s, now() + MS);
    }
}

static void expect_works(swx_session *s) { expect_run(s, "echo works; (exit 3)\n", 3, "works\n"); }

/* The command is over, and what the terminal holds fits: nobody has to wait for the reader to learn that. */
static void test_the_end_is_heard_while_held(void)
{
    swx_session *s = open_session(LIMIT);
    for (int i = 0; i < 2; i++) {
        swx_op op = streamed("seq 46500; (exit 4)\n"); /* 268 kB */
        counted c = { 0 };
        complete(s, &op);
        CHECK(op.end == SWX_END_DONE && op.code == 4);
        take_all(s, &op, &c);
        CHECK(c.next == 46500);
        swx_buf_free(&op.output);
        expect_works(s);
    }
    close_session(s);
}

/* It is over, but only the terminal knows: the deadline hears of it. */
static void test_a_deadline_hears_the_end(void)
{
    swx_session *s = open_configured(LIMIT, true);
    swx_op op = streamed("seq 46500; (exit 4)\n");
    counted c = { 0 };
    submit(s, &op);
    wait_until_held(s);
    wait_until_back(s, &op);
    op.deadline = now();
    wait_for(s, &op);
    CHECK(op.end == SWX_END_DONE && op.code == 4);
    take_all(s, &op, &c);
    CHECK(c.next == 46500);
    swx_buf_free(&op.output);
    expect_works(s);
    close_session(s);
}

static void test_the_shell_is_killed_while_held(void)
{
    swx_session *s = open_session(LIMIT);
    swx_op op = streamed("trap '' HUP; seq 100000000\n");
    counted c = { 0 };
    submit(s, &op);
    wait_until_held(s);
    CHECK(kill(swx_session_pid(s), SIGKILL) == 0);
    wait_for(s, &op);
    CHECK(op.end == SWX_END_DIED && op.signal == SIGKILL);
    take_all(s, &op, &c);
    CHECK(c.total > LIMIT / 4); /* without a gap, though it goes on printing */
    swx_buf_free(&op.output);
    close_session(s);
}

static void test_interrupt_while_held(void)
{
    static const struct {
        const char *line;
        swx_end end;
        int code;
    } cases[] = { { "seq 100000000\n", SWX_END_DONE, 130 },
                  { "trap 'echo; exit 5' INT; i=0; while :; do echo $((++i)); done\n", SWX_END_DIED, 5 },
                  { "(trap '' INT HUP; seq 100000000)\n", SWX_END_DONE, 137 } };
    for (size_t i = 0; i < SWX_COUNT(cases); i++) {
        swx_session *s = open_session(LIMIT);
        swx_op op = streamed(cases[i].line), stop = operation(SWX_OP_INTERRUPT, "");
        submit(s, &op);
        wait_until_held(s);
        stop.step = cases[i].code == 137 ? 20 * MS : stop.step;
        complete(s, &stop);
        swx_buf_free(&stop.output);
        CHECK(op.end == cases[i].end && op.code == cases[i].code);
        swx_buf_free(&op.output);
        close_session(s);
    }
}

/* Who waits for the end of what runs does not wait for its reader. */
static void test_a_wait_for_the_end(void)
{
    swx_session *s = open_session(LIMIT);
    swx_op op = streamed("seq 400000; (exit 4)\n"), wait = operation(SWX_OP_LINE, "");
    submit(s, &op);
    wait_until_held(s);
    submit(s, &wait);
    CHECK(swx_session_wants_read(s));
    wait_for(s, &wait);
    CHECK(op.end == SWX_END_DONE && op.code == 4);
    EXPECT(&wait, SWX_END_DONE, 4, "");
    static uint8_t bytes[2 * LIMIT];
    size_t size = 0, part;
    while ((part = swx_session_take(s, &op, bytes + size, 100000, now()))) {
        size += part;
    }
    /* it is told what it misses */
    CHECK(size < 2 * LIMIT && memmem(bytes, size, "bytes of output were dropped here", 33));
    CHECK(size > 8 && memcmp(bytes + size - 8, "\n400000\n", 8) == 0);
    swx_buf_free(&op.output);
    expect_works(s);
    close_session(s);
}

/* What is taken out of an output at its end moves what its reader has yet to take. */
static void test_a_notice_that_was_taken(void)
{
    static const char whole[] = "one\n[1]+  Done                    sleep 0.05\r\ntwo\n";
    static const size_t had[] = { 5, sizeof(whole) - 6, sizeof(whole) - 5 };
    for (size_t i = 0; i < SWX_COUNT(had); i++) {
        swx_session *s = open_session(LIMIT);
        swx_op op = operation(SWX_OP_RUN, "set -b; sleep 0.05 &\n");
        complete(s, &op);
        swx_buf_free(&op.output);
        op = streamed("echo one; sleep 0.15; echo two\n");
        submit(s, &op);
        char text[128] = { 0 }, wanted[128];
        size_t size = 0, part;
        for (int64_t until = now() + PATIENCE; op.end == SWX_END_NONE && size < had[i];) {
            CHECK(now() < until);
            turn(s, until);
            size += swx_session_take(s, &op, (uint8_t *)text + size, 100, now());
            size = op.taken = size < had[i] ? size : had[i]; /* a reader with less room */
        }
        wait_for(s, &op);
        CHECK(op.end == SWX_END_DONE && op.output.size == 8);
        while ((part = swx_session_take(s, &op, (uint8_t *)text + size, 100, now()))) {
            size += part;
        }
        text[size] = 0;
        size_t notice = strlen(whole) - 8, shown = had[i] <= 4 ? 0 : had[i] - 4 < notice ? had[i] - 4 : notice;
        snprintf(wanted, sizeof(wanted), "one\n%.*stwo\n", (int)shown, whole + 4);
        /* of a machine that is busy: then it comes before the prompt */
        bool late = strncmp(text, "one\ntwo\n", 8) == 0;
        CHECK(late || strcmp(text, wanted) == 0);
        swx_buf_free(&op.output);
        close_session(s);
    }
}

/* Over a client a shell may be at its prompt, which nobody has heard because of the reader: that is no doubt. */
static void test_client(void)
{
    swx_session *s = open_client();
    swx_op op = streamed("seq 400000; (exit 4)\n"); /* the limit is 4 MiB */
    counted c = { 0 };
    submit(s, &op);
    wait_until_held(s);
    CHECK(!swx_session_look(s).doubtful && !swx_session_resync(s, swx_session_look(s).commands, now()));
    while (op.end == SWX_END_NONE) {
        take(s, &op, &c, 50000);
        turn(s, now() + MS);
    }
    take_all(s, &op, &c);
    CHECK(op.end == SWX_END_DONE && op.code == 4 && c.next == 400000);
    swx_buf_free(&op.output);
    expect_works(s);
    close_session(s);
}

TRANSPORT_MAIN(test_the_end_is_heard_while_held, test_a_deadline_hears_the_end, test_the_shell_is_killed_while_held,
               test_interrupt_while_held, test_a_wait_for_the_end, test_a_notice_that_was_taken, test_client)
