/* Patterns that the owner of an operation searches for. */
#include "alloc.h"
#include "turns.h"

static void tell_nothing(swx_op *op) { (void)op; }

static swx_op searched(swx_op_kind kind, const char *typed)
{
    swx_op op = operation(kind, typed);
    op.searched_by_owner = true;
    op.news = tell_nothing;
    return op;
}

static void free_search(swx_op *op)
{
    swx_buf_free(&op->heard);
    swx_buf_free(&op->unsearched);
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

/* What could not be kept is told: nothing is found in a part of the output as if it were all. */
static void test_without_memory(void)
{
#ifdef SWX_ALLOC_TEST
    bool good = false;
    for (unsigned long i = 1; !good; i++) {
        swx_session *s = open_session(1 << 20);
        swx_op op = searched(SWX_OP_RUN, "printf 'some text ready and more'; (exit 3)\n");
        swx_buf bytes;
        uint64_t at;
        swx_alloc_fail_at(i, 0);
        submit(s, &op);
        wait_for(s, &op);
        good = swx_alloc_count() < i;
        swx_alloc_fail_at(0, 0);
        swx_session_take_unsearched(s, &op, &bytes, &at, now());
        if (at == 0 && bytes.size >= 15 && memcmp(bytes.data, "some text ready", 15) == 0) {
            swx_session_found(s, &op, &(swx_hit){ .start = 10, .end = 15 }, now());
        }
        swx_buf_free(&bytes);
        CHECK(i < 1000 &&
              (op.end == SWX_END_MATCHED || (!good && (op.end == SWX_END_MEMORY || op.end == SWX_END_LOST))));
        EXPECT(&op, op.end, op.code, op.end == SWX_END_MATCHED ? "some text " : NULL);
        free_search(&op);
        close_session(s);
    }
#endif
}

TEST_MAIN(test_a_stale_hit, test_a_slow_search, test_without_memory)
