/* Streams whose reader is slow, stops, or goes away: nothing of the output is lost, and nobody else waits for that
 * reader. */
#include "programs.h"
#include "carried.h"

#include <stdlib.h>

enum { LIMIT = 1 << 20 };

static swx_op streamed(const char *line)
{
    swx_op op = operation(SWX_OP_RUN, line);
    op.stream = true;
    op.news = noted;
    return op;
}

/* What `seq` prints, as far as it was taken. */
typedef struct {
    unsigned long next;
    char rest[32];
    size_t size, total;
} counted;

static void count_on(counted *c, const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\n') {
            c->rest[c->size] = 0;
            CHECK(strtoul(c->rest, NULL, 10) == ++c->next);
            c->size = 0;
        } else {
            CHECK(bytes[i] >= '0' && bytes[i] <= '9' && c->size < sizeof(c->rest) - 1); /* a note has other letters */
            c->rest[c->size++] = (char)bytes[i];
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
    int64_t limit = now() + PATIENCE;
    while (swx_session_wants_read(s)) {
        CHECK(now() < limit);
        turn(s, limit);
    }
    unsigned turns = 0;
    for (int64_t until = now() + 20 * MS; now() < until; turns++) { /* it stays so, and nothing turns meanwhile */
        turn(s, until);
        CHECK(!swx_session_wants_read(s));
    }
    CHECK(turns < 30);
}

/* Until the shell has the terminal again, and sleeps: in the read of its prompt. */
static void wait_until_back(swx_session *s)
{
    pid_t shell = swx_session_pid(s);
    for (int64_t limit = now() + PATIENCE; tcgetpgrp(swx_session_terminal(s)) != shell || !swx_kernel_sleeps(shell);) {
        CHECK(now() < limit);
        turn(s, now() + MS);
    }
}

static void expect_works(swx_session *s) { expect_run(s, "echo works; (exit 3)\n", 3, "works\n"); }

static void read_slowly(size_t limit, bool unproven)
{
    swx_session *s = open_configured(limit, unproven);
    swx_op op = streamed("seq 400000; (exit 4)\n");
    counted c = { 0 };
    unsigned held = 0;
    submit(s, &op);
    for (int64_t until = now() + PATIENCE; op.end == SWX_END_NONE;) {
        CHECK(now() < until);
        turn(s, now() + MS);
        held += !swx_session_wants_read(s);
        if (op.end == SWX_END_NONE && !swx_session_wants_read(s)) {
            take(s, &op, &c, 100000);
        }
    }
    CHECK(op.end == SWX_END_DONE && op.code == 4 && held > 5);
    CHECK(op.output.size <= (limit < LIMIT ? LIMIT : limit) && op.output.total == 2688895 && op.limit == limit);
    take_all(s, &op, &c);
    CHECK(c.next == 400000 && c.total == 2688895);
    swx_buf_free(&op.output);
    expect_run(s, "echo works; (exit 3)\n", 3, limit == 2 ? "w\n" : "works\n");
    close_session(s);
}

static void test_a_slow_reader_gets_every_byte(void)
{
    read_slowly(LIMIT, false);
    read_slowly(2, false); /* a limit that leaves no room at all is for the answer, not for the stream */
    read_slowly(LIMIT, true);
}

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

static void test_deadline_while_held(void)
{
    for (int unproven = 0; unproven < 2; unproven++) {
        swx_session *s = open_configured(LIMIT, unproven);
        swx_op op = streamed("seq 100000000\n");
        counted c = { 0 };
        submit(s, &op);
        wait_until_held(s);
        op.deadline = now();
        wait_for(s, &op);
        CHECK(op.end == SWX_END_TIMEOUT);
        take_all(s, &op, &c);
        CHECK(c.next > 30000);
        swx_buf_free(&op.output);
        CHECK(swx_session_wants_read(s)); /* it runs for nobody now */
        swx_op next = operation(SWX_OP_RUN, "echo never\n");
        next.deadline = now() + 100 * MS;
        complete(s, &next);
        CHECK(!next.typed_out);
        EXPECT(&next, SWX_END_TIMEOUT, 0, "");
        for (int64_t limit = now() + PATIENCE; !swx_session_look(s).late; turn(s, limit)) {
            CHECK(now() < limit);
        }
        interrupt(s);
        expect_works(s);
        /* It is over, but only the terminal knows: the deadline hears of it. */
        op = streamed("seq 46500; (exit 4)\n");
        c = (counted){ 0 };
        submit(s, &op);
        if (unproven) {
            wait_until_held(s);
            wait_until_back(s);
            CHECK(op.end == SWX_END_NONE);
            op.deadline = now();
        }
        wait_for(s, &op);
        CHECK(op.end == SWX_END_DONE && op.code == 4);
        take_all(s, &op, &c);
        CHECK(c.next == 46500);
        swx_buf_free(&op.output);
        expect_works(s);
        close_session(s);
    }
}

static void test_interrupt_while_held(void)
{
    static const char *const lines[] = { "seq 100000000\n",
                                         "trap 'echo; exit 5' INT; i=0; while :; do echo $((++i)); done\n",
                                         "(trap '' INT; seq 100000000)\n" };
    for (size_t i = 0; i < SWX_COUNT(lines); i++) {
        bool dies = i == 1, ignores = i == 2;
        swx_session *s = open_session(LIMIT);
        swx_op op = streamed(lines[i]);
        counted c = { 0 };
        submit(s, &op);
        wait_until_held(s);
        swx_op stop = operation(SWX_OP_INTERRUPT, "");
        stop.step = ignores ? 20 * MS : stop.step;
        complete(s, &stop);
        CHECK(op.end == (dies ? SWX_END_DIED : SWX_END_DONE));
        CHECK(op.code == (dies ? 5 : ignores ? 137 : 130));
        swx_buf_free(&stop.output);
        if (!dies && !ignores) { /* what was on its way when the signal came is all there */
            uint8_t *bytes = malloc(2 * LIMIT);
            size_t size = 0, part;
            CHECK(bytes);
            while ((part = swx_session_take(s, &op, bytes + size, LIMIT, now()))) {
                size += part;
            }
            while (size && (bytes[size - 1] < '0' || bytes[size - 1] > '9')) {
                size--;
            }
            count_on(&c, bytes, size);
            CHECK(c.total > LIMIT / 4);
            free(bytes);
        }
        swx_buf_free(&op.output);
        if (!dies) {
            expect_works(s);
        }
        close_session(s);
    }
}

static void test_given_up_while_held(void)
{
    swx_session *s = open_session(LIMIT);
    swx_op op = streamed("seq 400000\n"), next = operation(SWX_OP_RUN, "echo next\n");
    counted c = { 0 };
    submit(s, &op);
    submit(s, &next);
    wait_until_held(s);
    CHECK(next.end == SWX_END_NONE);
    swx_session_cancel(s, &op); /* what it has left behind does not wait for a reader any more */
    CHECK(op.end == SWX_END_CANCELLED && swx_session_wants_read(s));
    take_all(s, &op, &c);
    swx_buf_free(&op.output);
    wait_for(s, &next);
    EXPECT(&next, SWX_END_DONE, 0, "next\n");
    CHECK(swx_session_look(s).late + c.total == 2688895);
    close_session(s);
}

static void test_ends_while_held(void)
{
    swx_session *s = open_session(LIMIT);
    swx_op op = streamed("seq 100000000\n");
    submit(s, &op);
    wait_until_held(s);
    close_session(s);
    CHECK(op.end == SWX_END_CLOSED);
    swx_buf_free(&op.output);

    s = open_session(LIMIT);
    op = streamed("trap '' HUP; seq 100000000\n");
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

    s = open_session(LIMIT);
    op = streamed("seq 100000000\n");
    submit(s, &op);
    wait_until_held(s);
    swx_session_free(s);
}

/* A program that nobody hears is not silent. */
static void test_silence_is_not_what_is_not_heard(void)
{
    swx_session *s = open_session(LIMIT);
    swx_op op = streamed("seq 400000; sleep 100\n");
    counted c = { 0 };
    submit(s, &op);
    wait_until_held(s);
    op.quiet = 1000 * MS;
    rest(s, 1500 * MS);
    CHECK(op.end == SWX_END_NONE);
    for (int64_t until = now() + PATIENCE; c.next < 400000 && op.end == SWX_END_NONE;) {
        CHECK(now() < until);
        take_all(s, &op, &c);
        turn(s, now() + MS);
    }
    CHECK(op.end == SWX_END_NONE);
    wait_for(s, &op);
    CHECK(op.end == SWX_END_QUIET && c.next == 400000);
    swx_buf_free(&op.output);
    interrupt(s);
    expect_works(s);
    close_session(s);
}

static void test_a_pattern_behind_what_is_held(void)
{
    swx_match *match = pattern("399999\n");
    swx_session *s = open_session(LIMIT);
    swx_op op = streamed("seq 400000; sleep 100\n");
    counted c = { 0 };
    op.match = match;
    submit(s, &op);
    wait_until_held(s);
    for (int64_t until = now() + PATIENCE; op.end == SWX_END_NONE;) {
        CHECK(now() < until);
        take(s, &op, &c, 200000);
        turn(s, now() + MS);
    }
    take_all(s, &op, &c);
    CHECK(op.end == SWX_END_MATCHED && c.next == 399998);
    swx_buf_free(&op.output);
    interrupt(s);
    expect_works(s);
    close_session(s);
    swx_match_free(match);
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
    uint8_t *bytes = malloc(2 * LIMIT);
    size_t size = 0, part;
    CHECK(bytes);
    while ((part = swx_session_take(s, &op, bytes + size, 100000, now()))) {
        size += part;
    }
    /* it is told what it misses */
    CHECK(size < 2 * LIMIT && memmem(bytes, size, "bytes of output were dropped here", 33));
    CHECK(size > 8 && memcmp(bytes + size - 8, "\n400000\n", 8) == 0);
    free(bytes);
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

/* Behind a carrier a shell may be at its prompt, which nobody has heard because of the reader: that is no doubt. */
static void test_behind_a_carrier(void)
{
    swx_session *s = open_carried();
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
    op = streamed("seq 100000000\n");
    c = (counted){ 0 };
    submit(s, &op);
    wait_until_held(s);
    interrupt(s);
    CHECK(op.end == SWX_END_DONE && op.code == 130);
    swx_buf_free(&op.output);
    expect_works(s);
    close_session(s);
}

static const swx_test tests[] = { test_a_slow_reader_gets_every_byte,
                                  test_the_end_is_heard_while_held,
                                  test_deadline_while_held,
                                  test_interrupt_while_held,
                                  test_given_up_while_held,
                                  test_ends_while_held,
                                  test_silence_is_not_what_is_not_heard,
                                  test_a_pattern_behind_what_is_held,
                                  test_a_wait_for_the_end,
                                  test_a_notice_that_was_taken,
                                  test_behind_a_carrier };

int main(int argc, char **argv) { return run_or_carry(tests, SWX_COUNT(tests), argc, argv); }
