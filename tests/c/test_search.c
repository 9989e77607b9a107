/* Patterns that the owner of an operation searches for. */
#include "swx_alloc.h"
#include "turns.h"

enum { HEARD = 1 << 16 };

typedef struct {
    char text[HEARD + 1];
    size_t size;
} heard;

static void tell_nothing(swx_op *op) { (void)op; }

static swx_op searched(swx_op_kind kind, const char *typed)
{
    swx_op op = operation(kind, typed);
    op.searched_by_owner = true;
    op.news = tell_nothing;
    return op;
}

/* Takes what is there.  True: a word is in what was taken so far, and the operation was told. */
static bool search(swx_session *s, swx_op *op, heard *h, const char *word)
{
    swx_buf bytes;
    uint64_t at;
    swx_session_take_unsearched(s, op, &bytes, &at, now());
    CHECK(at == 0 || at == h->size);
    CHECK(at + bytes.size <= HEARD);
    swx_buf_copy(&bytes, (uint8_t *)h->text + at);
    h->size = (size_t)at + bytes.size;
    h->text[h->size] = 0;
    swx_buf_free(&bytes);
    const char *found = strstr(h->text, word);
    if (found) {
        swx_hit hit = { .index = 7,
                        .start = (uint64_t)(found - h->text),
                        .end = (uint64_t)(found - h->text) + strlen(word) };
        swx_session_found(s, op, &hit, now());
    }
    return found;
}

static void free_search(swx_op *op)
{
    swx_buf_free(&op->heard);
    swx_buf_free(&op->unsearched);
}

/* It is the same whether the match is found at once or when the operation has ended. */
static void test_code_after_a_match(void)
{
    const struct {
        const char *typed;
        bool ended;
        int code;
    } cases[] = {
        { "printf 'aaa PAT bbb'; (exit 3)\n", true, 3 },
        { "printf 'aaa PAT'; seq 3000; (exit 4)\n", true, 4 },
        { "printf 'aaa PAT'; sleep 20\n", false, 0 },
        { "printf 'aaa PAT'; exit 5\n", false, 5 },
    };
    for (int late = 0; late < 2; late++) {
        swx_session *s = open_session(65536);
        for (size_t i = 0; i < SWX_COUNT(cases); i++) {
            swx_op op = searched(SWX_OP_RUN, cases[i].typed), stop = operation(SWX_OP_INTERRUPT, "");
            heard h = { .size = 0 };
            bool found = false;
            op.grace = (cases[i].ended ? 20000 : 50) * MS;
            op.deadline = late && i == 2 ? now() + 300 * MS : SWX_NEVER;
            submit(s, &op);
            for (int64_t limit = now() + PATIENCE; op.end == SWX_END_NONE;) {
                CHECK(now() < limit);
                turn(s, limit);
                found = found || (!late && search(s, &op, &h, "PAT"));
            }
            if (!found) {
                static const swx_end ends[] = { SWX_END_DONE, SWX_END_DONE, SWX_END_TIMEOUT, SWX_END_DIED };
                CHECK(op.end == ends[i]);
                CHECK(search(s, &op, &h, "PAT"));
            }
            CHECK(op.hit.index == 7 && op.hit.start == 4 && op.hit.end == 7);
            CHECK(op.ended == cases[i].ended && (!op.ended || op.code == cases[i].code));
            EXPECT(&op, SWX_END_MATCHED, op.code, "aaa ");
            free_search(&op);
            if (i == 2) {
                submit(s, &stop);
                wait_for(s, &stop);
                swx_buf_free(&stop.output);
            } else if (i < 2) {
                expect_run(s, "echo $?\n", 0, i ? "4\n" : "3\n");
            }
        }
        close_session(s);
    }
}

static void test_nothing_is_found(void)
{
    swx_session *s = open_session(65536);
    swx_op op = searched(SWX_OP_RUN, "echo one; (exit 3)\n");
    heard h = { .size = 0 };
    submit(s, &op);
    wait_for(s, &op);
    CHECK(!search(s, &op, &h, "PAT") && strcmp(h.text, "one\n") == 0);
    EXPECT(&op, SWX_END_DONE, 3, "one\n");
    free_search(&op);
    close_session(s);
}

/* A hit beyond what was taken is one of an output that has begun anew meanwhile. */
static void test_a_stale_hit(void)
{
    swx_session *s = open_session(65536);
    swx_op op = searched(SWX_OP_RUN, "echo one; (exit 3)\n");
    submit(s, &op);
    wait_for(s, &op);
    swx_session_found(s, &op, &(swx_hit){ .start = 1, .end = 2 }, now());
    EXPECT(&op, SWX_END_DONE, 3, "one\n");
    free_search(&op);
    close_session(s);
}

static void test_a_search_that_takes_too_long(void)
{
    swx_session *s = open_session(65536);
    swx_op op = searched(SWX_OP_RUN, "echo one; sleep 1000\n"), stop = operation(SWX_OP_INTERRUPT, "");
    submit(s, &op);
    for (int64_t limit = now() + PATIENCE; !op.unsearched.size; turn(s, limit)) {
        CHECK(now() < limit && op.end == SWX_END_NONE);
    }
    swx_session_found(s, &op, NULL, now());
    EXPECT(&op, SWX_END_COSTLY, 0, "one\n");
    free_search(&op);
    submit(s, &stop);
    wait_for(s, &stop);
    swx_buf_free(&stop.output);
    op = searched(SWX_OP_RUN, "echo one; (exit 3)\n");
    submit(s, &op);
    wait_for(s, &op);
    CHECK(op.end == SWX_END_DONE);
    swx_session_found(s, &op, NULL, now());
    EXPECT(&op, SWX_END_COSTLY, 3, "one\n");
    free_search(&op);
    expect_run(s, "echo two\n", 0, "two\n");
    close_session(s);
}

/* The program waits for a search that is behind, which misses nothing. */
static void test_a_slow_search(void)
{
    swx_session *s = open_session(1000);
    swx_op op = searched(SWX_OP_RUN, "seq 400000; (exit 4)\n");
    uint64_t total = 0, at = 0;
    unsigned held = 0;
    submit(s, &op);
    for (int64_t limit = now() + PATIENCE; op.end == SWX_END_NONE;) {
        swx_buf bytes;
        CHECK(now() < limit);
        turn(s, now() + 100 * MS);
        if (!swx_session_wants_read(s) || op.end != SWX_END_NONE) {
            held += op.end == SWX_END_NONE;
            swx_session_take_unsearched(s, &op, &bytes, &at, now());
            CHECK(at == total && bytes.size < 2 * SWX_STREAM_LEAST);
            total += bytes.size;
            swx_buf_free(&bytes);
        }
    }
    CHECK(op.end == SWX_END_DONE && op.code == 4 && held && total == 2688895);
    swx_buf_free(&op.output);
    free_search(&op);
    expect_run(s, "echo next\n", 0, "next\n");
    close_session(s);
}

static void test_an_interrupt(void)
{
    swx_session *s = open_session(1 << 20);
    swx_op op = operation(SWX_OP_RUN, "bash -c 'trap \"echo abc ready; sleep 100\" INT; echo 0123456789; while :; do "
                                      "sleep 0.01; done'\n");
    swx_op stop = searched(SWX_OP_INTERRUPT, "");
    heard h = { .size = 0 };
    submit(s, &op);
    wait_for_output(s, &op, 11);
    op.deadline = now();
    wait_for(s, &op);
    EXPECT(&op, SWX_END_TIMEOUT, 0, NULL);
    stop.step = PATIENCE;
    submit(s, &stop);
    for (int64_t limit = now() + PATIENCE; !search(s, &stop, &h, "ready"); turn(s, limit)) {
        CHECK(now() < limit && stop.end == SWX_END_NONE);
    }
    CHECK(stop.hit.start == stop.output.total);
    EXPECT(&stop, SWX_END_MATCHED, 0, "abc ");
    free_search(&stop);
    close_session(s);
}

/* What could not be kept is told: nothing is found in a part of the output as if it were all. */
static void test_without_memory(void)
{
#ifdef SWX_ALLOC_TEST
    bool good = false;
    for (unsigned long i = 1; !good; i++) {
        swx_session *s = open_session(1 << 20);
        swx_op op = searched(SWX_OP_RUN, "printf 'some text ready and more'; (exit 3)\n");
        heard h = { .size = 0 };
        swx_alloc_fail_at(i, 0);
        submit(s, &op);
        wait_for(s, &op);
        good = swx_alloc_count() < i;
        swx_alloc_fail_at(0, 0);
        search(s, &op, &h, "ready");
        CHECK(i < 1000 &&
              (op.end == SWX_END_MATCHED || (!good && (op.end == SWX_END_MEMORY || op.end == SWX_END_LOST))));
        EXPECT(&op, op.end, op.code, op.end == SWX_END_MATCHED ? "some text " : NULL);
        free_search(&op);
        close_session(s);
    }
#endif
}

TEST_MAIN(test_code_after_a_match, test_nothing_is_found, test_a_stale_hit, test_a_search_that_takes_too_long,
          test_a_slow_search, test_an_interrupt, test_without_memory)
