/* Frames at every cut of a stream, and values that are cut. */
#include "swx_frame.h"
#include "harness.h"
#include "alloc.h"

/* ---- values ---- */

/* What they mean is asked in tests/core/test_frame.py; here, that no byte behind them is looked at. */
static void test_values_that_are_cut(void)
{
    for (unsigned first = 0; first < 256; first++) {
        for (size_t left = 1; left < 40; left++) {
            uint8_t *exact = calloc(1, left); /* so that a sanitizer sees a byte too far */
            swx_value value;
            CHECK(exact);
            exact[0] = (uint8_t)first;
            exact[left - 1] |= (uint8_t)(left > 1);
            CHECK(!swx_value_read(exact, left, &value) || value.header + value.body <= left);
            free(exact);
        }
    }
}

/* ---- frames ---- */

enum { FRAMES = 4 };

static const size_t lengths[FRAMES] = { 1, 5, 700, 3 };

/* Frames whose payloads are rows of one byte each. */
static size_t make_stream(uint8_t *out)
{
    size_t at = 0;
    for (size_t i = 0; i < FRAMES; i++) {
        memcpy(out + at, (uint8_t[]){ 0, 0, (uint8_t)(lengths[i] >> 8), (uint8_t)lengths[i] }, SWX_FRAME_HEADER);
        memset(out + at + SWX_FRAME_HEADER, 'a' + (int)i, lengths[i]);
        at += SWX_FRAME_HEADER + lengths[i];
    }
    return at;
}

/* Takes all that a copy of the chunk has; *count is of the frames before and after. */
static swx_status take_all(swx_frame_stream *stream, const uint8_t *bytes, size_t size, size_t *count, swx_error *err)
{
    uint8_t *exact = malloc(size ? size : 1);
    const uint8_t *at = exact;
    swx_span payload;
    swx_status status;
    CHECK(exact);
    memcpy(exact, bytes, size);
    while ((status = swx_frame_take(stream, &at, &size, &payload, err)) == SWX_OK) {
        CHECK(*count < FRAMES && payload.size == lengths[*count]);
        for (size_t i = 0; i < payload.size; i++) {
            CHECK(payload.bytes[i] == 'a' + *count);
        }
        ++*count;
    }
    CHECK(status != SWX_MORE || size == 0);
    free(exact);
    return status;
}

/* Good frames, and behind them nothing, an empty frame, or one that is too long. */
static void test_every_chunk_size(void)
{
    static const struct {
        const char *header;
        size_t size;
        swx_status status;
    } ends[] = { { "", 0, SWX_MORE },
                 { "\0\0\0\0", SWX_FRAME_HEADER, SWX_EFORMAT },
                 { "\0\0\x02\xbd", SWX_FRAME_HEADER, SWX_ELIMIT } };
    uint8_t bytes[1024];
    size_t size = make_stream(bytes);
    for (size_t end = 0; end < SWX_COUNT(ends); end++) {
        size_t all = size + ends[end].size;
        memcpy(bytes + size, ends[end].header, ends[end].size);
        for (size_t chunk = 1; chunk <= all; chunk++) {
            swx_frame_stream stream = { .max_frame = 700 };
            swx_error err = { .status = SWX_MORE, .position = size };
            size_t count = 0;
            swx_status status = SWX_MORE;
            for (size_t at = 0; at < all && status == SWX_MORE; at += chunk) {
                status = take_all(&stream, bytes + at, all - at < chunk ? all - at : chunk, &count, &err);
            }
            CHECK(status == ends[end].status && err.status == status && err.position == size);
            CHECK(count == FRAMES && stream.position == size);
            swx_frame_reset(&stream);
            CHECK(!stream.held.data && stream.max_frame == 700 && !stream.position);
        }
    }
}

static void test_a_whole_frame_is_not_copied(void)
{
    uint8_t bytes[1024];
    const uint8_t *at = bytes;
    size_t left = make_stream(bytes);
    swx_frame_stream stream = { .max_frame = 700 };
    swx_span payload;
    swx_error err;
    for (size_t i = 0; i < FRAMES; i++) {
        const uint8_t *begin = at;
        CHECK(swx_frame_take(&stream, &at, &left, &payload, &err) == SWX_OK &&
              payload.bytes == begin + SWX_FRAME_HEADER);
    }
    CHECK(!stream.held.data && !left);
}

/* Memory grows with what came, and what is large goes back. */
static void test_memory(void)
{
    static uint8_t bytes[1 << 20];
    swx_frame_stream stream = { .max_frame = UINT32_MAX };
    swx_span payload;
    swx_error err;
    const uint8_t *at = (const uint8_t *)"\xff\xff\xff\xffx";
    size_t left = 5;
    CHECK(swx_frame_take(&stream, &at, &left, &payload, &err) == SWX_MORE && stream.held.size == 5 &&
          stream.held.capacity <= 512);
    swx_frame_reset(&stream);
    for (int round = 0; round < 2; round++) { /* one of 1 MiB in two parts */
        memcpy(bytes, "\0\x0f\xff\xfc", SWX_FRAME_HEADER);
        at = bytes;
        left = sizeof(bytes) - 1;
        CHECK(swx_frame_take(&stream, &at, &left, &payload, &err) == SWX_MORE);
        at = bytes + sizeof(bytes) - 1;
        left = 1;
        CHECK(swx_frame_take(&stream, &at, &left, &payload, &err) == SWX_OK &&
              payload.size == sizeof(bytes) - SWX_FRAME_HEADER);
        CHECK(stream.held.capacity >= sizeof(bytes) && stream.held.capacity < sizeof(bytes) + 512);
    }
    at = (const uint8_t *)"\0\0\0\x01x";
    left = 5;
    CHECK(swx_frame_take(&stream, &at, &left, &payload, &err) == SWX_OK && payload.size == 1 && !stream.held.data);
}

#ifdef SWX_ALLOC_TEST
static void test_every_allocation_may_fail(void)
{
    uint8_t bytes[1024];
    size_t size = make_stream(bytes), failed = 0;
    for (unsigned long n = 1; n < 20; n++) {
        swx_frame_stream stream = { .max_frame = 700 };
        swx_error err;
        size_t count = 0;
        swx_status status = SWX_MORE;
        swx_alloc_fail_at(n, 0);
        for (size_t at = 0; at < size && status == SWX_MORE; at += 50) {
            status = take_all(&stream, bytes + at, size - at < 50 ? size - at : 50, &count, &err);
        }
        swx_alloc_fail_at(0, 0);
        CHECK(status == SWX_MORE ? count == FRAMES : status == SWX_ENOMEM && err.status == SWX_ENOMEM);
        failed += status == SWX_ENOMEM;
        swx_frame_reset(&stream);
        CHECK(swx_alloc_live() == 0);
    }
    CHECK(failed >= 2);
}
#else
static void test_every_allocation_may_fail(void) {}
#endif

TEST_MAIN(test_values_that_are_cut, test_every_chunk_size, test_a_whole_frame_is_not_copied, test_memory,
          test_every_allocation_may_fail)
