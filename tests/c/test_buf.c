#include "swx_buf.h"
#include "harness.h"
#include "alloc.h"

/* Bytes that differ from their neighbours. */
static uint8_t all[200];

static void fill(void)
{
    for (size_t i = 0; i < sizeof(all); i++) {
        all[i] = (uint8_t)(i * 7 + 1);
    }
}

/* The naive buffer: everything, cut at the end. */
static void expect_held(const swx_buf *buf, const uint8_t *held, size_t size)
{
    size_t head = buf->limit - buf->limit / 2, tail = buf->limit / 2;
    uint8_t *out = malloc(buf->limit + 1);
    swx_buf_copy(buf, "", out);
    CHECK(buf->total == size);
    if (size <= buf->limit) {
        CHECK(buf->size == size && swx_buf_dropped(buf) == 0);
        CHECK(size == 0 || memcmp(out, held, size) == 0);
    } else {
        CHECK(buf->size == buf->limit && swx_buf_dropped(buf) == size - buf->limit);
        CHECK(memcmp(out, held, head) == 0);
        CHECK(memcmp(out + head, held + size - tail, tail) == 0);
    }
    free(out);
}

static void test_every_limit_and_chunk(void)
{
    fill();
    for (size_t limit = 2; limit < 70; limit++) {
        for (size_t chunk = 1; chunk < 90; chunk++) {
            swx_buf buf;
            swx_buf_init(&buf, limit);
            expect_held(&buf, all, 0);
            for (size_t at = 0; at < sizeof(all); at += chunk) {
                size_t n = sizeof(all) - at < chunk ? sizeof(all) - at : chunk;
                CHECK(swx_buf_append(&buf, all + at, n) == SWX_OK);
                expect_held(&buf, all, at + n);
            }
            swx_buf_clear(&buf);
            expect_held(&buf, all, 0);
            CHECK(swx_buf_append(&buf, "abc", 3) == SWX_OK);
            expect_held(&buf, (const uint8_t *)"abc", 3);
            swx_buf_free(&buf);
        }
    }
}

static void test_chop_takes_the_end_off(void)
{
    uint8_t out[100];
    fill();
    for (size_t limit = 2; limit < 60; limit++) {
        for (size_t size = 0; size <= 100; size++) {
            for (size_t off = 0; off <= limit / 2 && off <= size; off++) {
                swx_buf buf;
                swx_buf_init(&buf, limit);
                CHECK(swx_buf_append(&buf, all, size) == SWX_OK);
                size_t tail = size < 10 ? size : 10;
                CHECK(swx_buf_ends_with(&buf, all + size - tail, tail) ==
                      (buf.size >= tail && (size <= limit || limit / 2 >= tail)));
                swx_buf_chop(&buf, off);
                size_t held = (size <= limit ? size : limit) - off;
                CHECK(buf.size == held && buf.total == size - off);
                CHECK(swx_buf_dropped(&buf) == (size <= limit ? 0 : size - limit));
                swx_buf_copy(&buf, "", out);
                size_t kept = size <= limit ? held : limit / 2 - off;
                CHECK(kept == 0 || memcmp(out + held - kept, all + size - off - kept, kept) == 0);
                swx_buf_free(&buf);
            }
        }
    }
}

static void test_clear_gives_large_memory_back(void)
{
    swx_buf buf;
    char block[1000] = { 0 };
    swx_buf_init(&buf, 1 << 20);
    for (int i = 0; i < 200; i++) {
        CHECK(swx_buf_append(&buf, block, sizeof(block)) == SWX_OK);
    }
    swx_buf_clear(&buf);
    CHECK(buf.capacity == 0 && buf.data == NULL);
    swx_buf_free(&buf);
}

#ifdef SWX_ALLOC_TEST
static void test_failing_allocation_changes_nothing(void)
{
    swx_buf buf;
    swx_buf_init(&buf, 1 << 20);
    CHECK(swx_buf_append(&buf, "abc", 3) == SWX_OK);
    uint8_t big[4096];
    memset(big, 'x', sizeof(big));
    swx_alloc_fail_at(1, 0);
    CHECK(swx_buf_append(&buf, big, sizeof(big)) == SWX_ENOMEM);
    expect_held(&buf, (const uint8_t *)"abc", 3);
    swx_alloc_fail_at(0, 0);
    CHECK(swx_buf_append(&buf, big, sizeof(big)) == SWX_OK);
    CHECK(buf.size == 3 + sizeof(big));
    swx_buf_free(&buf);
    CHECK(swx_alloc_live() == 0);
}
#else
static void test_failing_allocation_changes_nothing(void) {}
#endif

static void test_narrow(void)
{
    fill();
    for (size_t wide = 3; wide < 60; wide++) {
        for (size_t limit = 2; limit < wide; limit++) {
            for (size_t size = limit + 1; size < sizeof(all); size += 1 + size / 20) {
                swx_buf buf, narrow;
                swx_buf_init(&buf, wide);
                CHECK(swx_buf_append(&buf, all, size / 3) == SWX_OK &&
                      swx_buf_append(&buf, all + size / 3, size - size / 3) == SWX_OK);
                CHECK(swx_buf_narrow(&narrow, &buf, limit) == SWX_OK);
                expect_held(&narrow, all, size);
                expect_held(&buf, all, size);
                swx_buf_free(&narrow);
#ifdef SWX_ALLOC_TEST
                swx_alloc_fail_at(1, true);
                CHECK(swx_buf_narrow(&narrow, &buf, limit) == SWX_ENOMEM);
                swx_alloc_fail_at(0, false);
#endif
                swx_buf_free(&buf);
            }
        }
    }
}

TEST_MAIN(test_every_limit_and_chunk, test_narrow, test_chop_takes_the_end_off, test_clear_gives_large_memory_back,
          test_failing_allocation_changes_nothing)
