/* Frames at every cut of a stream, and what the first bytes of values say. */
#include "swx_frame.h"
#include "harness.h"
#include "swx_alloc.h"

/* ---- values ---- */

static swx_value read_all(const uint8_t *bytes, size_t size)
{
    swx_value value;
    for (size_t left = 1; left < size; left++) {
        uint8_t *exact = malloc(left); /* so that a sanitizer sees a byte too far */
        CHECK(exact);
        memcpy(exact, bytes, left);
        CHECK(!swx_value_read(exact, left, &value));
        free(exact);
    }
    CHECK(swx_value_read(bytes, size, &value));
    CHECK(value.header + value.body == size);
    return value;
}

#define VALUE(text) read_all((const uint8_t *)(text), sizeof(text) - 1)

static void test_scalars(void)
{
    static const struct {
        const char *bytes;
        size_t size;
        int64_t integer;
    } integers[] = {
        { "\x00", 1, 0 },
        { "\x7f", 1, 127 },
        { "\xff", 1, -1 },
        { "\xe0", 1, -32 },
        { "\xcc\xff", 2, 255 },
        { "\xcd\xff\xff", 3, 65535 },
        { "\xce\xff\xff\xff\xff", 5, 4294967295 },
        { "\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", 9, INT64_MAX },
        { "\xd0\x80", 2, -128 },
        { "\xd1\x80\x00", 3, -32768 },
        { "\xd2\x80\x00\x00\x00", 5, INT32_MIN },
        { "\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 9, INT64_MIN },
        { "\xd3\x00\x00\x00\x00\x00\x00\x00\x05", 9, 5 },
    };
    for (size_t i = 0; i < SWX_COUNT(integers); i++) {
        swx_value value = read_all((const uint8_t *)integers[i].bytes, integers[i].size);
        CHECK(value.kind == SWX_INT && value.integer == integers[i].integer);
    }
    swx_value value = VALUE("\xcf\x80\x00\x00\x00\x00\x00\x00\x00");
    CHECK(value.kind == SWX_UINT && value.natural == UINT64_C(1) << 63);
    CHECK(VALUE("\xc0").kind == SWX_NIL);
    value = VALUE("\xc2");
    CHECK(value.kind == SWX_BOOL && value.integer == 0);
    value = VALUE("\xc3");
    CHECK(value.kind == SWX_BOOL && value.integer == 1);
    value = VALUE("\xca\x3f\xc0\x00\x00");
    CHECK(value.kind == SWX_FLOAT && value.number == 1.5);
    value = VALUE("\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00");
    CHECK(value.kind == SWX_FLOAT && value.number == -1.5);
}

static void test_bodies_and_containers(void)
{
    static const struct {
        const char *bytes;
        size_t size;
        swx_value_kind kind;
        size_t header;
        uint32_t count;
    } values[] = {
        { "\xa0", 1, SWX_STR, 1, 0 },
        { "\xa2"
          "ab",
          3, SWX_STR, 1, 0 },
        { "\xd9\x02"
          "ab",
          4, SWX_STR, 2, 0 },
        { "\xda\x00\x02"
          "ab",
          5, SWX_STR, 3, 0 },
        { "\xdb\x00\x00\x00\x02"
          "ab",
          7, SWX_STR, 5, 0 },
        { "\xc4\x01"
          "a",
          3, SWX_BIN, 2, 0 },
        { "\xc5\x00\x01"
          "a",
          4, SWX_BIN, 3, 0 },
        { "\xc6\x00\x00\x00\x01"
          "a",
          6, SWX_BIN, 5, 0 },
        { "\x9f", 1, SWX_ARRAY, 1, 15 },
        { "\xdc\x01\x00", 3, SWX_ARRAY, 3, 256 },
        { "\xdd\xff\xff\xff\xff", 5, SWX_ARRAY, 5, UINT32_MAX },
        { "\x8f", 1, SWX_MAP, 1, 15 },
        { "\xde\x00\x01", 3, SWX_MAP, 3, 1 },
        { "\xdf\x00\x00\x00\x00", 5, SWX_MAP, 5, 0 },
    };
    for (size_t i = 0; i < SWX_COUNT(values); i++) {
        swx_value value = read_all((const uint8_t *)values[i].bytes, values[i].size);
        CHECK(value.kind == values[i].kind && value.header == values[i].header && value.count == values[i].count);
    }
}

static void test_what_is_refused_is_never_cut_short(void)
{
    static const uint8_t exts[] = { 0xc7, 0xc8, 0xc9, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8 };
    swx_value value;
    for (size_t i = 0; i < SWX_COUNT(exts); i++) {
        CHECK(swx_value_read(&exts[i], 1, &value) && value.kind == SWX_EXT);
    }
    CHECK(swx_value_read((const uint8_t *)"\xc1", 1, &value) && value.kind == SWX_RESERVED);
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

static void test_every_chunk_size(void)
{
    uint8_t bytes[1024];
    size_t size = make_stream(bytes);
    for (size_t chunk = 1; chunk <= size; chunk++) {
        swx_frame_stream stream = { .max_frame = 700 };
        swx_error err;
        size_t count = 0;
        for (size_t at = 0; at < size; at += chunk) {
            CHECK(take_all(&stream, bytes + at, size - at < chunk ? size - at : chunk, &count, &err) == SWX_MORE);
        }
        CHECK(count == FRAMES && stream.size == 0 && stream.position == size);
        swx_frame_reset(&stream);
        CHECK(!stream.data && stream.max_frame == 700 && !stream.position);
    }
}

static void test_bad_lengths_at_every_chunk_size(void)
{
    uint8_t bytes[1024];
    size_t size = make_stream(bytes);
    for (int empty = 0; empty < 2; empty++) {
        memcpy(bytes + size, empty ? "\0\0\0\0" : "\0\0\x02\xbd", SWX_FRAME_HEADER);
        for (size_t chunk = 1; chunk <= size + SWX_FRAME_HEADER; chunk++) {
            swx_frame_stream stream = { .max_frame = 700 };
            swx_error err;
            size_t count = 0;
            swx_status status = SWX_MORE;
            for (size_t at = 0; status == SWX_MORE; at += chunk) {
                size_t left = size + SWX_FRAME_HEADER - at;
                status = take_all(&stream, bytes + at, left < chunk ? left : chunk, &count, &err);
            }
            CHECK(status == (empty ? SWX_EFORMAT : SWX_ELIMIT) && err.status == status && err.position == size);
            CHECK(count == FRAMES);
            swx_frame_reset(&stream);
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
    CHECK(!stream.data && !left);
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
    CHECK(swx_frame_take(&stream, &at, &left, &payload, &err) == SWX_MORE && stream.size == 5 &&
          stream.capacity <= 512);
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
        CHECK(stream.capacity >= sizeof(bytes) && stream.capacity < sizeof(bytes) + 512);
    }
    at = (const uint8_t *)"\0\0\0\x01x";
    left = 5;
    CHECK(swx_frame_take(&stream, &at, &left, &payload, &err) == SWX_OK && payload.size == 1 && !stream.data);
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

TEST_MAIN(test_scalars, test_bodies_and_containers, test_what_is_refused_is_never_cut_short, test_every_chunk_size,
          test_bad_lengths_at_every_chunk_size, test_a_whole_frame_is_not_copied, test_memory,
          test_every_allocation_may_fail)
