#include "swx_frame.h"

#include <inttypes.h>

#include "harness.h"
#include "swx_alloc.h"

static const swx_frame_limits DEFAULTS = { .max_frame = SWX_FRAME_MAX_FRAME,
                                           .max_depth = SWX_FRAME_MAX_DEPTH,
                                           .max_items = SWX_FRAME_MAX_ITEMS };

/* ---- a builder that makes a tree and prints it ---- */

typedef struct node {
    char text[64];
    uint32_t count, filled; /* children that there will be, that there are; keys of a map count too */
    struct node **child;
    char open, close;
} node;

static node *new_node(uint32_t children)
{
    node *n = swx_calloc(1, sizeof(*n));
    if (n && children) {
        n->count = children;
        n->child = swx_calloc(children, sizeof(*n->child));
        if (!n->child) {
            swx_free(n);
            return NULL;
        }
    }
    return n;
}

static void drop(void *user, void *value)
{
    (void)user;
    node *n = value;
    for (uint32_t i = 0; i < n->filled; i++) {
        drop(NULL, n->child[i]);
    }
    swx_free(n->child);
    swx_free(n);
}

#define LEAF(...)                                      \
    do {                                               \
        (void)user;                                    \
        node *n = new_node(0);                         \
        if (n) {                                       \
            snprintf(n->text, sizeof(n->text), __VA_ARGS__); \
        }                                              \
        return n;                                      \
    } while (0)

static void *make_nil(void *user) { LEAF("nil"); }
static void *make_bool(void *user, bool value) { LEAF("%s", value ? "true" : "false"); }
static void *make_int(void *user, int64_t value) { LEAF("%" PRId64, value); }
static void *make_natural(void *user, uint64_t value) { LEAF("u%" PRIu64, value); }
static void *make_number(void *user, double value) { LEAF("%.17g", value); }

static unsigned sum(const uint8_t *bytes, size_t size)
{
    unsigned total = 0;
    for (size_t i = 0; i < size; i++) {
        total = total * 31 + bytes[i];
    }
    return total;
}

/* Short bodies are shown, long ones by size and checksum. */
static void *body(char quote, const uint8_t *bytes, size_t size)
{
    void *user = NULL;
    if (size > 20) {
        LEAF("%c%zu:%u%c", quote, size, sum(bytes, size), quote);
    }
    LEAF("%c%.*s%c", quote, (int)size, (const char *)bytes, quote);
}

static void *make_str(void *user, const uint8_t *bytes, size_t size) { (void)user; return body('\'', bytes, size); }
static void *make_bin(void *user, const uint8_t *bytes, size_t size) { (void)user; return body('|', bytes, size); }

static void *container(uint32_t children, char open, char close)
{
    node *n = new_node(children);
    if (n) {
        n->open = open;
        n->close = close;
    }
    return n;
}

static void *make_array(void *user, uint32_t count) { (void)user; return container(count, '[', ']'); }
static void *make_map(void *user, uint32_t count) { (void)user; return container(count * 2, '{', '}'); }

static bool array_set(void *user, void *array, uint32_t index, void *value)
{
    node *n = array;
    (void)user;
    CHECK(index == n->filled && n->filled < n->count);
    n->child[n->filled++] = value;
    return true;
}

static bool map_set(void *user, void *map, uint32_t index, void *key, void *value)
{
    node *n = map;
    CHECK(index * 2 == n->filled);
    return array_set(user, map, index * 2, key) && array_set(user, map, index * 2 + 1, value);
}

static bool map_end(void *user, void *map, uint32_t count)
{
    node *n = map;
    (void)user;
    CHECK(n->open == '{' && n->filled == n->count && n->count == count * 2);
    return true;
}

static const swx_frame_builder TREE = {
    .nil = make_nil, .boolean = make_bool, .integer = make_int, .natural = make_natural, .number = make_number,
    .str = make_str, .bin = make_bin, .array = make_array, .array_set = array_set, .map = make_map,
    .map_set = map_set, .map_end = map_end, .drop = drop,
};

static void print(const node *n, char **at)
{
    if (!n->open) {
        *at += sprintf(*at, "%s", n->text);
        return;
    }
    *at += sprintf(*at, "%c", n->open);
    for (uint32_t i = 0; i < n->count; i++) {
        *at += sprintf(*at, "%s", i ? " " : "");
        print(n->child[i], at);
    }
    *at += sprintf(*at, "%c", n->close);
}

/* What the scanner and the builder, who must agree, say about a payload. */
static swx_status judge(const void *payload, size_t size, const swx_frame_limits *limits, swx_error *err)
{
    swx_error scanned = { .status = SWX_OK }, built = scanned;
    void *value;
    swx_status status = swx_frame_scan(payload, size, limits, &scanned);
    swx_status again = swx_frame_build(payload, size, limits, &TREE, NULL, &value, &built);
    CHECK(status == again && (value == NULL) == (again != SWX_OK));
    CHECK(scanned.status == status && scanned.text == built.text && scanned.position == built.position);
    if (value) {
        drop(NULL, value);
    }
    *err = scanned;
    return status;
}

static void expect_built(const uint8_t *payload, size_t size, const char *text)
{
    char out[4096], *at = out;
    void *value;
    CHECK(swx_frame_build(payload, size, &DEFAULTS, &TREE, NULL, &value, NULL) == SWX_OK);
    print(value, &at);
    if (strcmp(out, text) != 0) {
        fprintf(stderr, "built %s, expected %s\n", out, text);
        exit(1);
    }
    drop(NULL, value);
}

/* ---- tables ---- */

#define BYTES(text) text, sizeof(text) - 1

static const struct {
    const char *payload;
    size_t size;
    const char *text;
} GOOD[] = {
    { BYTES("\xc0"), "nil" },
    { BYTES("\xc2"), "false" },
    { BYTES("\xc3"), "true" },
    { BYTES("\x00"), "0" },
    { BYTES("\x7f"), "127" },
    { BYTES("\xe0"), "-32" },
    { BYTES("\xff"), "-1" },
    { BYTES("\xcc\xff"), "255" },
    { BYTES("\xcd\x01\x02"), "258" },
    { BYTES("\xce\x01\x02\x03\x04"), "16909060" },
    { BYTES("\xcf\x00\x00\x00\x00\x00\x00\x00\x05"), "5" },
    { BYTES("\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"), "9223372036854775807" },
    { BYTES("\xcf\x80\x00\x00\x00\x00\x00\x00\x00"), "u9223372036854775808" },
    { BYTES("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), "u18446744073709551615" },
    { BYTES("\xd0\x80"), "-128" },
    { BYTES("\xd1\x80\x00"), "-32768" },
    { BYTES("\xd2\x80\x00\x00\x00"), "-2147483648" },
    { BYTES("\xd3\x80\x00\x00\x00\x00\x00\x00\x00"), "-9223372036854775808" },
    { BYTES("\xca\x3f\xc0\x00\x00"), "1.5" },
    { BYTES("\xcb\x3f\xb9\x99\x99\x99\x99\x99\x9a"), "0.10000000000000001" },
    { BYTES("\xa0"), "''" },
    { BYTES("\xa3" "abc"), "'abc'" },
    { BYTES("\xd9\x02" "hi"), "'hi'" },
    { BYTES("\xda\x00\x02" "hi"), "'hi'" },
    { BYTES("\xdb\x00\x00\x00\x02" "hi"), "'hi'" },
    { BYTES("\xd9\x00"), "''" },
    { BYTES("\xa4\xf0\x9f\x90\x8d"), "'\xf0\x9f\x90\x8d'" },
    { BYTES("\xc4\x00"), "||" },
    { BYTES("\xc4\x03" "a\xff" "b"), "|a\xff" "b|" },
    { BYTES("\xc5\x00\x01" "a"), "|a|" },
    { BYTES("\xc6\x00\x00\x00\x01" "a"), "|a|" },
    { BYTES("\x90"), "[]" },
    { BYTES("\xdc\x00\x00"), "[]" },
    { BYTES("\x93\x01\xc0\x90"), "[1 nil []]" },
    { BYTES("\xdc\x00\x02\x01\x02"), "[1 2]" },
    { BYTES("\xdd\x00\x00\x00\x02\x01\x02"), "[1 2]" },
    { BYTES("\x80"), "{}" },
    { BYTES("\x82\xa1" "a\x01\xa1" "b\x92\xc3\x80"), "{'a' 1 'b' [true {}]}" },
    { BYTES("\xde\x00\x01\xa0\xa0"), "{'' ''}" },
    { BYTES("\xdf\x00\x00\x00\x01\xd9\x01" "k\x81\xa1" "k\xff"), "{'k' {'k' -1}}" },
    { BYTES("\x91\x91\x91\x91\xc4\x01" "x"), "[[[[|x|]]]]" },
};

static const struct {
    const char *payload;
    size_t size;
    swx_status status;
    size_t position;
} BAD[] = {
    { BYTES(""), SWX_EFORMAT, 0 },
    { BYTES("\xc1"), SWX_EFORMAT, 0 },
    { BYTES("\x92\x01\xc1"), SWX_EFORMAT, 2 },
    { BYTES("\x01\x02"), SWX_EFORMAT, 1 },
    { BYTES("\x90\xc0"), SWX_EFORMAT, 1 },
    { BYTES("\x91\xc0\xc0"), SWX_EFORMAT, 2 },
    { BYTES("\x92\x01"), SWX_EFORMAT, 0 },
    { BYTES("\x92\x91\x01"), SWX_EFORMAT, 0 + 1 },
    { BYTES("\x81\xa1" "a"), SWX_EFORMAT, 1 },
    { BYTES("\x81\x01\x01"), SWX_EFORMAT, 1 },
    { BYTES("\x81\xc4\x01" "a\x01"), SWX_EFORMAT, 1 },
    { BYTES("\x82\xa1" "a\x01\xc0\x01"), SWX_EFORMAT, 4 },
    { BYTES("\x81\x90\x01"), SWX_EFORMAT, 1 },
    { BYTES("\xcd\x01"), SWX_EFORMAT, 0 },
    { BYTES("\xcb\x3f\xb9\x99\x99\x99\x99\x99"), SWX_EFORMAT, 0 },
    { BYTES("\xa2" "a"), SWX_EFORMAT, 0 },
    { BYTES("\xdb\xff\xff\xff\xff" "a"), SWX_EFORMAT, 0 },
    { BYTES("\xc6\xff\xff\xff\xff"), SWX_EFORMAT, 0 },
    { BYTES("\xdc\xff\xff"), SWX_EFORMAT, 0 },
    { BYTES("\xdd\xff\xff\xff\xff\x01"), SWX_ELIMIT, 0 },
    { BYTES("\xdf\xff\xff\xff\xff\x01"), SWX_ELIMIT, 0 },
    { BYTES("\x92\xa1\x80\x01"), SWX_EFORMAT, 2 },
    { BYTES("\x91\xa5" "ab\xed\xa0\x80"), SWX_EFORMAT, 4 },
    { BYTES("\xd4\x01\x02"), SWX_EUNSUPPORTED, 0 },
    { BYTES("\x91\xd6\xff\x00\x00\x00\x00"), SWX_EUNSUPPORTED, 1 },
    { BYTES("\xc7\x01\x05" "a"), SWX_EUNSUPPORTED, 0 },
    { BYTES("\xc9\xff\xff\xff\xff\x05" "a"), SWX_EUNSUPPORTED, 0 },
    { BYTES("\xd8"), SWX_EUNSUPPORTED, 0 },
};

/* A copy that ends where its block ends, so that a read past it is seen. */
static uint8_t *exact(const void *bytes, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    CHECK(copy);
    if (size) {
        memcpy(copy, bytes, size);
    }
    return copy;
}

static void put_length(uint8_t *out, size_t length)
{
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t)(length >> (24 - 8 * i));
    }
}

/* ---- scan and build ---- */

static void test_good_payloads(void)
{
    for (size_t i = 0; i < SWX_COUNT(GOOD); i++) {
        uint8_t *payload = exact(GOOD[i].payload, GOOD[i].size);
        swx_error err;
        CHECK(judge(payload, GOOD[i].size, &DEFAULTS, &err) == SWX_OK);
        expect_built(payload, GOOD[i].size, GOOD[i].text);
        free(payload);
    }
}

static void test_bad_payloads(void)
{
    for (size_t i = 0; i < SWX_COUNT(BAD); i++) {
        uint8_t *payload = exact(BAD[i].payload, BAD[i].size);
        swx_error err;
        swx_status status = judge(payload, BAD[i].size, &DEFAULTS, &err);
        if (status != BAD[i].status || err.position != BAD[i].position || !err.text || err.status != status) {
            fprintf(stderr, "BAD[%zu]: status %d at %zu: %s\n", i, status, err.position, err.text);
            exit(1);
        }
        free(payload);
    }
}

static void test_every_truncation_is_refused(void)
{
    for (size_t i = 0; i < SWX_COUNT(GOOD); i++) {
        for (size_t size = 0; size < GOOD[i].size; size++) {
            uint8_t *payload = exact(GOOD[i].payload, size);
            swx_error err;
            CHECK(judge(payload, size, &DEFAULTS, &err) == SWX_EFORMAT);
            free(payload);
        }
    }
}

/* Decodes with arithmetic and asks what the standard asks: shortest form, no surrogate, at most U+10FFFF. */
static bool naive_utf8(const uint8_t *p, size_t size)
{
    size_t at = 0;
    while (at < size) {
        size_t length = p[at] < 0x80 ? 1 : p[at] >> 5 == 6 ? 2 : p[at] >> 4 == 14 ? 3 : p[at] >> 3 == 30 ? 4 : 0;
        if (!length || length > size - at) {
            return false;
        }
        uint32_t code = length == 1 ? p[at] : p[at] & (0x7fu >> length);
        for (size_t i = 1; i < length; i++) {
            if (p[at + i] >> 6 != 2) {
                return false;
            }
            code = code << 6 | (p[at + i] & 0x3f);
        }
        size_t shortest = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        if (length != shortest || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
            return false;
        }
        at += length;
    }
    return true;
}

static bool scan_accepts_text(const uint8_t *text, size_t size)
{
    uint8_t payload[300] = { 0xd9, (uint8_t)size };
    memcpy(payload + 2, text, size);
    return swx_frame_scan(payload, size + 2, &DEFAULTS, NULL) == SWX_OK;
}

static bool both_accept_text(const uint8_t *text, size_t size)
{
    uint8_t payload[300] = { 0xd9, (uint8_t)size };
    swx_error err;
    memcpy(payload + 2, text, size);
    return judge(payload, size + 2, &DEFAULTS, &err) == SWX_OK;
}

static void test_utf8_against_arithmetic(void)
{
    static const uint8_t edges[] = { 0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xe0, 0xf0, 0xff };
    for (unsigned first = 0; first < 256; first++) {
        for (unsigned second = 0; second < 256; second++) {
            for (size_t i = 0; i < SWX_COUNT(edges) * SWX_COUNT(edges); i++) {
                uint8_t text[4] = { (uint8_t)first, (uint8_t)second, edges[i % SWX_COUNT(edges)],
                                    edges[i / SWX_COUNT(edges)] };
                for (size_t size = 1; size <= 4; size++) {
                    CHECK(scan_accepts_text(text, size) == naive_utf8(text, size));
                }
            }
        }
    }
}

static void test_utf8_at_every_offset_of_ascii(void)
{
    for (size_t offset = 0; offset < 100; offset++) {
        uint8_t text[104];
        memset(text, 'x', sizeof(text));
        memcpy(text + offset, "\xf0\x9f\x90\x8d", 4);
        CHECK(both_accept_text(text, sizeof(text)));
        text[offset + 3] = 'x';
        CHECK(!both_accept_text(text, sizeof(text)));
        memset(text + offset, 'x', 4);
        text[offset] = 0x80;
        CHECK(!both_accept_text(text, sizeof(text)));
    }
}

static void test_trusted_text_is_not_looked_at(void)
{
    swx_frame_limits limits = { .trust_text = true };
    swx_frame_encoder encoder;
    uint8_t frame[7];
    CHECK(swx_frame_encoder_init(&encoder, &limits, NULL) == SWX_OK && swx_frame_begin(&encoder) == SWX_OK);
    CHECK(swx_frame_pack_str(&encoder, "\xff\x80", 2) == SWX_OK && swx_frame_end(&encoder) == SWX_OK);
    CHECK(swx_frame_encoder_total(&encoder) == sizeof(frame));
    swx_frame_encoder_copy(&encoder, frame);
    swx_error err;
    CHECK(judge(frame + 4, 3, &encoder.limits, &err) == SWX_OK);
    encoder.limits.trust_text = false;
    CHECK(judge(frame + 4, 3, &encoder.limits, &err) == SWX_EFORMAT && err.position == 1);
    swx_frame_encoder_free(&encoder);
}

static void test_depth_limit(void)
{
    for (uint32_t limit = 1; limit <= SWX_FRAME_DEPTH_CEILING; limit++) {
        swx_frame_limits limits = { .max_depth = limit };
        uint8_t payload[SWX_FRAME_DEPTH_CEILING + 2];
        swx_error err;
        CHECK(swx_frame_limits_fill(&limits, &err) == SWX_OK);
        memset(payload, 0x91, sizeof(payload));
        payload[limit - 1] = 0x90;
        CHECK(judge(payload, limit, &limits, &err) == SWX_OK);
        payload[limit - 1] = 0x91;
        payload[limit] = 0x90;
        CHECK(judge(payload, limit + 1, &limits, &err) == SWX_ELIMIT && err.position == limit);
        payload[limit] = 0x80;
        CHECK(judge(payload, limit + 1, &limits, &err) == SWX_ELIMIT && err.position == limit);
    }
    swx_frame_limits above = { .max_depth = SWX_FRAME_DEPTH_CEILING + 1 };
    swx_error err;
    CHECK(swx_frame_limits_fill(&above, &err) == SWX_EINVAL && err.text);
}

static void test_item_limit(void)
{
    swx_frame_limits limits = { .max_items = 7 };
    swx_error err;
    CHECK(swx_frame_limits_fill(&limits, &err) == SWX_OK);
    CHECK(judge("\x96\x01\x02\x03\x04\x05\x06", 7, &limits, &err) == SWX_OK);
    CHECK(judge("\x97\x01\x02\x03\x04\x05\x06\x07", 8, &limits, &err) == SWX_ELIMIT);
    CHECK(judge("\x83\xa0\x01\xa0\x01\xa0\x01", 7, &limits, &err) == SWX_OK);
    CHECK(judge("\x84\xa0\x01\xa0\x01\xa0\x01\xa0\x01", 9, &limits, &err) == SWX_ELIMIT);
    CHECK(judge("\x93\x93\x01\x02\x03\x91\x01\x01", 8, &limits, &err) == SWX_ELIMIT);
    CHECK(err.position == 5);
    CHECK(judge("\x93\x93\x01\x02\x03\x01\x01", 7, &limits, &err) == SWX_OK);
}

/* A builder that keeps pointers sees the payload itself. */
static void *keep(void *user, const uint8_t *bytes, size_t size)
{
    *(swx_span *)user = (swx_span){ bytes, size };
    return user;
}

static void test_bin_is_not_copied(void)
{
    swx_frame_builder builder = TREE;
    uint8_t payload[] = "\xc4\x05hello";
    swx_span seen;
    void *value;
    builder.bin = keep;
    CHECK(swx_frame_build(payload, 7, &DEFAULTS, &builder, &seen, &value, NULL) == SWX_OK);
    CHECK(value == &seen && seen.bytes == payload + 2 && seen.size == 5);
}

/* The tree's builder, which stops when its user counts down to 0; what it set before that it has taken. */
static bool goes_on(void *user) { return --*(unsigned *)user > 0; }
static void *stop_nil(void *user) { return goes_on(user) ? make_nil(NULL) : NULL; }
static void *stop_bool(void *user, bool value) { return goes_on(user) ? make_bool(NULL, value) : NULL; }
static void *stop_int(void *user, int64_t value) { return goes_on(user) ? make_int(NULL, value) : NULL; }
static void *stop_array(void *user, uint32_t count) { return goes_on(user) ? make_array(NULL, count) : NULL; }
static void *stop_map(void *user, uint32_t count) { return goes_on(user) ? make_map(NULL, count) : NULL; }

static void *stop_str(void *user, const uint8_t *bytes, size_t size)
{
    return goes_on(user) ? make_str(NULL, bytes, size) : NULL;
}

static bool stop_array_set(void *user, void *array, uint32_t index, void *value)
{
    return array_set(NULL, array, index, value) && goes_on(user);
}

static bool stop_map_set(void *user, void *map, uint32_t index, void *key, void *value)
{
    return map_set(NULL, map, index, key, value) && goes_on(user);
}

static bool stop_map_end(void *user, void *map, uint32_t count) { return map_end(NULL, map, count) && goes_on(user); }

/* ASan and the counts of the allocator see what is given up twice or not at all. */
static void test_builder_stops_anywhere(void)
{
    static const uint8_t payload[] = "\x82\xa1" "a\x92\x81\xa1" "b\x01\x90\xa1" "c\x83\xa0\xc0\xa1" "d\x80\xa1" "e\x91\xc3";
    swx_frame_builder builder = TREE;
    builder.nil = stop_nil, builder.boolean = stop_bool, builder.integer = stop_int, builder.str = stop_str;
    builder.array = stop_array, builder.map = stop_map;
    builder.array_set = stop_array_set, builder.map_set = stop_map_set, builder.map_end = stop_map_end;
    unsigned calls = 0;
    swx_status status;
    do {
        unsigned left = ++calls;
        void *value;
        swx_error err;
        status = swx_frame_build(payload, sizeof(payload) - 1, &DEFAULTS, &builder, &left, &value, &err);
        CHECK(status == (left ? SWX_OK : SWX_EINVAL) && (status == SWX_OK || (!value && err.status == SWX_EINVAL)));
        if (status == SWX_OK) {
            drop(NULL, value);
        }
#ifdef SWX_ALLOC_TEST
        CHECK(swx_alloc_live() == 0);
#endif
    } while (status != SWX_OK);
    CHECK(calls == 30); /* 16 values, 9 members, 4 ends of maps */
}

/* A builder is not asked for room for members that there are no bytes for. */
static void *sane_container(void *user, uint32_t count)
{
    CHECK((*(size_t *)user -= 1) >= count && count < 1000);
    return container(count, '[', ']');
}

static void *sane_map(void *user, uint32_t count)
{
    CHECK((*(size_t *)user -= 1) >= (size_t)count * 2);
    return make_map(NULL, count);
}

static void test_no_container_is_made_on_its_word(void)
{
    static const struct {
        const char *header;
        size_t size;
    } headers[] = { { BYTES("\xdc\xff\xff") }, { BYTES("\xdd\xff\xff\xff\xff") }, { BYTES("\xde\xff\xff") },
                    { BYTES("\xdf\xff\xff\xff\xff") }, { BYTES("\x9f") }, { BYTES("\xdc\0\x80") },
                    { BYTES("\xde\0\x40") }, { BYTES("\xc4\x50" "12345678901234567890123456789012345678901234567890"
                                                    "123456789012345678901234567890") } };
    swx_frame_limits limits = { .max_items = UINT32_MAX };
    swx_frame_builder builder = TREE;
    swx_error err;
    CHECK(swx_frame_limits_fill(&limits, &err) == SWX_OK);
    builder.array = sane_container, builder.map = sane_map;
    for (size_t i = 0; i < SWX_COUNT(headers); i++) {
        for (size_t j = 0; j < SWX_COUNT(headers); j++) {
            uint8_t payload[130];
            size_t size = 0, room;
            void *value;
            payload[size++] = 0x9f; /* an array that could be */
            for (size_t k = 0; size + 90 < sizeof(payload); k++) {
                size_t header = k & 1 ? i : j;
                memcpy(payload + size, headers[header].header, headers[header].size);
                size += headers[header].size;
            }
            room = size;
            swx_status status = swx_frame_build(payload, size, &limits, &builder, &room, &value, &err);
            CHECK(status != SWX_OK && status == judge(payload, size, &limits, &err));
        }
    }
}

/* ---- decoder ---- */

static uint8_t *good_stream(size_t *size)
{
    uint8_t *stream = malloc(8192), *at = stream;
    CHECK(stream);
    for (size_t i = 0; i < SWX_COUNT(GOOD); i++) {
        put_length(at, GOOD[i].size);
        memcpy(at + 4, GOOD[i].payload, GOOD[i].size);
        at += 4 + GOOD[i].size;
    }
    *size = (size_t)(at - stream);
    return stream;
}

static void test_every_chunk_size(void)
{
    size_t size;
    uint8_t *stream = good_stream(&size);
    for (size_t chunk = 1; chunk <= size; chunk++) {
        swx_frame_decoder decoder;
        size_t frames = 0;
        CHECK(swx_frame_decoder_init(&decoder, NULL, NULL) == SWX_OK);
        for (size_t at = 0; at < size; at += chunk) {
            size_t n = size - at < chunk ? size - at : chunk, left = n;
            uint8_t *block = exact(stream + at, n);
            const uint8_t *bytes = block;
            swx_span payload;
            swx_status status;
            while ((status = swx_frame_take(&decoder, &bytes, &left, &payload)) == SWX_OK) {
                CHECK(payload.size == GOOD[frames].size);
                expect_built(payload.bytes, payload.size, GOOD[frames].text);
                frames++;
            }
            CHECK(status == SWX_MORE && left == 0 && bytes == block + n && payload.size == 0);
            free(block);
        }
        CHECK(frames == SWX_COUNT(GOOD) && swx_frame_decoder_pending(&decoder) == 0);
        CHECK(decoder.position == size);
        swx_frame_decoder_free(&decoder);
    }
    free(stream);
}

/* Takes a frame and builds its value, as a binding does. */
static swx_status take_value(swx_frame_decoder *decoder, const uint8_t **bytes, size_t *size)
{
    swx_span payload;
    swx_error err;
    void *value;
    swx_status status = swx_frame_take(decoder, bytes, size, &payload);
    if (status != SWX_OK) {
        return status;
    }
    status = swx_frame_build(payload.bytes, payload.size, &decoder->limits, &TREE, NULL, &value, &err);
    if (status == SWX_OK) {
        drop(NULL, value);
    } else {
        swx_frame_stop(decoder, payload, &err);
    }
    return status;
}

static swx_status feed(swx_frame_decoder *decoder, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    return take_value(decoder, &at, &size);
}

static void test_bad_frames_at_every_cut(void)
{
    for (size_t i = 1; i < SWX_COUNT(BAD); i++) {
        size_t size = 6 + BAD[i].size + 4; /* a good frame of two bytes before it */
        uint8_t stream[64] = { 0, 0, 0, 2, 0x91, 0xc0 };
        put_length(stream + 6, BAD[i].size);
        memcpy(stream + 10, BAD[i].payload, BAD[i].size);
        for (size_t chunk = 1; chunk <= size; chunk++) {
            swx_frame_decoder decoder;
            swx_status status = SWX_MORE;
            CHECK(swx_frame_decoder_init(&decoder, NULL, NULL) == SWX_OK);
            for (size_t at = 0; at < size; at += chunk) {
                size_t left = size - at < chunk ? size - at : chunk;
                const uint8_t *bytes = stream + at;
                while ((status = take_value(&decoder, &bytes, &left)) == SWX_OK) {
                }
            }
            CHECK(status == BAD[i].status && decoder.error.status == status);
            CHECK(decoder.error.position == 10 + BAD[i].position);
            CHECK(feed(&decoder, "\0\0\0\1\xc0", 5) == BAD[i].status);
            swx_frame_decoder_reset(&decoder);
            CHECK(feed(&decoder, "\0\0\0\1\xc0", 5) == SWX_OK && decoder.position == 5);
            swx_frame_decoder_free(&decoder);
        }
    }
}

static void test_length_limit_and_empty_frame(void)
{
    swx_frame_limits limits = { .max_frame = 5 };
    swx_frame_decoder decoder;
    CHECK(swx_frame_decoder_init(&decoder, &limits, NULL) == SWX_OK);
    CHECK(feed(&decoder, "\0\0\0\5\x94\1\2\3\4", 9) == SWX_OK);
    CHECK(feed(&decoder, "\0\0\0", 3) == SWX_MORE && swx_frame_decoder_pending(&decoder) == 3);
    CHECK(feed(&decoder, "\6", 1) == SWX_ELIMIT && decoder.error.position == 9);
    swx_frame_decoder_reset(&decoder);
    CHECK(feed(&decoder, "\0\0\0\0", 4) == SWX_EFORMAT && decoder.error.position == 0);
    swx_frame_decoder_free(&decoder);
}

static void test_announced_length_allocates_nothing(void)
{
    swx_frame_decoder decoder;
    CHECK(swx_frame_decoder_init(&decoder, NULL, NULL) == SWX_OK);
    CHECK(feed(&decoder, "\4\0\0\0", 4) == SWX_MORE && decoder.capacity == 0);
    CHECK(feed(&decoder, "\xc6\3\xff\xff\xfb" "12345", 10) == SWX_MORE);
    CHECK(decoder.capacity <= 512 && swx_frame_decoder_pending(&decoder) == 14);
    uint8_t block[1000] = { 0 };
    for (size_t held = 10; held < 1000000; held += sizeof(block)) {
        CHECK(feed(&decoder, block, sizeof(block)) == SWX_MORE);
        CHECK(decoder.size == held + sizeof(block) && decoder.capacity <= 2 * decoder.size);
    }
    swx_frame_decoder_reset(&decoder);
    CHECK(decoder.capacity == 0);
    swx_frame_decoder_free(&decoder);
}

static void test_large_memory_goes_back_with_the_next_small_frame(void)
{
    static uint8_t zeros[1000000];
    swx_frame_decoder decoder;
    CHECK(swx_frame_decoder_init(&decoder, NULL, NULL) == SWX_OK);
    for (int i = 0; i < 2; i++) {
        CHECK(feed(&decoder, "\0\xf\x42\x45\xc6\0\xf\x42\x40", 9) == SWX_MORE);
        CHECK(feed(&decoder, zeros, sizeof(zeros)) == SWX_OK && decoder.capacity >= sizeof(zeros));
        CHECK(feed(&decoder, "", 0) == SWX_MORE && swx_frame_decoder_pending(&decoder) == 0);
        CHECK(decoder.capacity >= sizeof(zeros));
    }
    CHECK(feed(&decoder, "\0\0\0\1\xc0", 5) == SWX_OK && decoder.capacity == 0);
    swx_frame_decoder_free(&decoder);
}

static void test_whole_frame_in_a_chunk_is_not_copied(void)
{
    swx_frame_decoder decoder;
    const uint8_t stream[] = "\0\0\0\3\xc4\1x\0\0\0\1\xc0", *at = stream;
    size_t left = 12;
    swx_span payload;
    CHECK(swx_frame_decoder_init(&decoder, NULL, NULL) == SWX_OK);
    CHECK(swx_frame_take(&decoder, &at, &left, &payload) == SWX_OK && payload.bytes == stream + 4);
    CHECK(swx_frame_take(&decoder, &at, &left, &payload) == SWX_OK && payload.bytes == stream + 11);
    CHECK(swx_frame_take(&decoder, &at, &left, &payload) == SWX_MORE && decoder.capacity == 0);
    at = stream, left = 12;
    decoder.copies = true;
    CHECK(swx_frame_take(&decoder, &at, &left, &payload) == SWX_OK && payload.bytes == decoder.data);
    CHECK(payload.size == 3 && memcmp(payload.bytes, stream + 4, 3) == 0 && swx_frame_decoder_pending(&decoder) == 0);
    CHECK(swx_frame_take(&decoder, &at, &left, &payload) == SWX_OK && payload.bytes == decoder.data);
    CHECK(payload.size == 1 && payload.bytes[0] == 0xc0);
    CHECK(swx_frame_take(&decoder, &at, &left, &payload) == SWX_MORE && decoder.position == 24);
    swx_frame_decoder_free(&decoder);
}

static void test_one_whole_frame(void)
{
    static const uint8_t frame[] = "\0\0\0\3\xc4\1x";
    swx_frame_limits limits = { .max_frame = 3, .max_depth = 1, .max_items = 1 };
    swx_span payload;
    swx_error err;
    CHECK(swx_frame_open(frame, 7, &limits, &payload, &err) == SWX_OK);
    CHECK(payload.bytes == frame + 4 && payload.size == 3);
    for (size_t size = 0; size < 7; size++) {
        uint8_t *cut = exact(frame, size);
        CHECK(swx_frame_open(cut, size, &limits, &payload, &err) == SWX_EFORMAT);
        CHECK(err.position == size && strstr(err.text, "short"));
        free(cut);
    }
    CHECK(swx_frame_open(frame, 8, &limits, &payload, &err) == SWX_EFORMAT);
    CHECK(err.position == 7 && strstr(err.text, "more"));
    CHECK(swx_frame_open((const uint8_t *)"\0\0\0\0", 4, &limits, &payload, &err) == SWX_EFORMAT);
    CHECK(err.position == 0 && strstr(err.text, "empty"));
    limits.max_frame = 2;
    CHECK(swx_frame_open(frame, 7, &limits, &payload, &err) == SWX_ELIMIT && err.position == 0);
}

static void test_ascii_is_copied_and_judged(void)
{
    uint8_t bytes[200];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)(i * 7 % 128);
    }
    for (size_t size = 0; size <= sizeof(bytes); size++) {
        uint8_t *from = exact(bytes, size), *to = malloc(size ? size : 1);
        CHECK(to && swx_frame_copy_ascii(to, from, size) && memcmp(to, from, size) == 0);
        for (size_t i = 0; i < size; i++) {
            from[i] |= 0x80;
            CHECK(!swx_frame_copy_ascii(to, from, size));
            from[i] &= 0x7f;
        }
        free(from);
        free(to);
    }
}

/* ---- encoder ---- */

/* The output as one block, each piece taken on its own. */
static uint8_t *output(const swx_frame_encoder *encoder, size_t *size)
{
    *size = swx_frame_encoder_total(encoder);
    uint8_t *whole = malloc(*size + 1), *pieces = malloc(*size + 1);
    CHECK(whole && pieces);
    swx_frame_encoder_copy(encoder, whole);
    size_t at = 0;
    for (size_t i = 0; i <= 2 * encoder->ref_count; i++) {
        swx_span piece = swx_frame_encoder_piece(encoder, i);
        if (piece.size) {
            memcpy(pieces + at, piece.bytes, piece.size);
            at += piece.size;
        }
    }
    CHECK(swx_frame_encoder_piece(encoder, 2 * encoder->ref_count + 1).size == 0);
    CHECK(at == *size && memcmp(whole, pieces, at) == 0);
    free(pieces);
    return whole;
}

static void expect_output(const swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    size_t got;
    uint8_t *out = output(encoder, &got);
    CHECK(got == size && memcmp(out, bytes, size) == 0);
    free(out);
}

#define ONE(call, text)                                          \
    do {                                                         \
        swx_frame_encoder encoder;                               \
        uint8_t frame[64] = { 0, 0, 0, sizeof(text) - 1 };       \
        memcpy(frame + 4, text, sizeof(text) - 1);               \
        CHECK(swx_frame_encoder_init(&encoder, NULL, NULL) == SWX_OK); \
        CHECK(swx_frame_begin(&encoder) == SWX_OK);              \
        CHECK((call) == SWX_OK);                                 \
        CHECK(swx_frame_end(&encoder) == SWX_OK);                \
        expect_output(&encoder, frame, 4 + sizeof(text) - 1);    \
        swx_frame_encoder_free(&encoder);                        \
    } while (0)

static void test_scalars_take_their_shortest_form(void)
{
    ONE(swx_frame_pack_nil(&encoder), "\xc0");
    ONE(swx_frame_pack_bool(&encoder, true), "\xc3");
    ONE(swx_frame_pack_bool(&encoder, false), "\xc2");
    ONE(swx_frame_pack_int(&encoder, 0), "\x00");
    ONE(swx_frame_pack_int(&encoder, 127), "\x7f");
    ONE(swx_frame_pack_int(&encoder, 128), "\xcc\x80");
    ONE(swx_frame_pack_int(&encoder, 256), "\xcd\x01\x00");
    ONE(swx_frame_pack_int(&encoder, 65536), "\xce\x00\x01\x00\x00");
    ONE(swx_frame_pack_int(&encoder, -32), "\xe0");
    ONE(swx_frame_pack_int(&encoder, -33), "\xd0\xdf");
    ONE(swx_frame_pack_int(&encoder, -129), "\xd1\xff\x7f");
    ONE(swx_frame_pack_int(&encoder, -32769), "\xd2\xff\xff\x7f\xff");
    ONE(swx_frame_pack_int(&encoder, INT64_MIN), "\xd3\x80\x00\x00\x00\x00\x00\x00\x00");
    ONE(swx_frame_pack_int(&encoder, INT64_MAX), "\xcf\x7f\xff\xff\xff\xff\xff\xff\xff");
    ONE(swx_frame_pack_uint(&encoder, UINT64_MAX), "\xcf\xff\xff\xff\xff\xff\xff\xff\xff");
    ONE(swx_frame_pack_uint(&encoder, 5), "\x05");
    ONE(swx_frame_pack_double(&encoder, 1.5), "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00");
    ONE(swx_frame_pack_str(&encoder, "hi", 2), "\xa2hi");
    ONE(swx_frame_pack_str(&encoder, NULL, 0), "\xa0");
    ONE(swx_frame_pack_bin(&encoder, "hi", 2), "\xc4\x02hi");
    ONE(swx_frame_pack_bin(&encoder, NULL, 0), "\xc4\x00");
    ONE(swx_frame_pack_bin_ref(&encoder, "hi", 2), "\xc4\x02hi");
    ONE(swx_frame_pack_str_ref(&encoder, "hi", 2), "\xa2hi");
    ONE(swx_frame_pack_bin_ref(&encoder, NULL, 0), "\xc4\x00");
    ONE(swx_frame_pack_array(&encoder, 0), "\x90");
    ONE(swx_frame_pack_map(&encoder, 0), "\x80");
}

static void pack_request(swx_frame_encoder *encoder, const uint8_t *chunk, size_t size, bool by_reference)
{
    swx_frame_pack_map(encoder, 3);
    swx_frame_pack_str(encoder, "id", 2);
    swx_frame_pack_uint(encoder, 7);
    swx_frame_pack_str(encoder, "data", 4);
    (by_reference ? swx_frame_pack_bin_ref : swx_frame_pack_bin)(encoder, chunk, size);
    swx_frame_pack_str(encoder, "more", 4);
    swx_frame_pack_array(encoder, 2);
    (by_reference ? swx_frame_pack_str_ref : swx_frame_pack_str)(encoder, "text", 4);
    swx_frame_pack_bool(encoder, true);
}

static void test_body_sizes_and_references(void)
{
    static uint8_t chunk[70000];
    memset(chunk, 'z', sizeof(chunk));
    static const size_t sizes[] = { 0, 1, 31, 32, 255, 256, 65535, 65536, 70000 };
    for (size_t i = 0; i < SWX_COUNT(sizes); i++) {
        swx_frame_encoder copied, referred;
        char text[128];
        CHECK(swx_frame_encoder_init(&copied, NULL, NULL) == SWX_OK);
        CHECK(swx_frame_encoder_init(&referred, NULL, NULL) == SWX_OK);
        for (int frame = 0; frame < 3; frame++) {
            CHECK(swx_frame_begin(&copied) == SWX_OK && swx_frame_begin(&referred) == SWX_OK);
            pack_request(&copied, chunk, sizes[i], false);
            pack_request(&referred, chunk, sizes[i], true);
            CHECK(swx_frame_end(&copied) == SWX_OK && swx_frame_end(&referred) == SWX_OK);
        }
        CHECK(copied.ref_count == 0 && referred.ref_count == (sizes[i] ? 6u : 3u));
        size_t size, left;
        uint8_t *bytes = output(&copied, &size);
        expect_output(&referred, bytes, size);
        const uint8_t *at = bytes;
        left = size;
        swx_frame_decoder decoder;
        swx_span payload;
        CHECK(swx_frame_decoder_init(&decoder, NULL, NULL) == SWX_OK);
        if (sizes[i] > 20) {
            sprintf(text, "|%zu:%u|", sizes[i], sum(chunk, sizes[i]));
        } else {
            sprintf(text, "|%.*s|", (int)sizes[i], (const char *)chunk);
        }
        for (int frame = 0; frame < 3; frame++) {
            char expected[256];
            CHECK(swx_frame_take(&decoder, &at, &left, &payload) == SWX_OK);
            sprintf(expected, "{'id' 7 'data' %s 'more' ['text' true]}", text);
            expect_built(payload.bytes, payload.size, expected);
        }
        CHECK(left == 0);
        free(bytes);
        swx_frame_decoder_free(&decoder);
        swx_frame_encoder_free(&copied);
        swx_frame_encoder_free(&referred);
    }
}

static swx_frame_encoder opened(swx_frame_limits limits)
{
    swx_frame_encoder encoder;
    CHECK(swx_frame_encoder_init(&encoder, &limits, NULL) == SWX_OK);
    CHECK(swx_frame_begin(&encoder) == SWX_OK && swx_frame_pack_nil(&encoder) == SWX_OK);
    CHECK(swx_frame_end(&encoder) == SWX_OK && swx_frame_begin(&encoder) == SWX_OK);
    return encoder;
}

/* The open frame is in error with this status and stays so; taking it back leaves the frame before it. */
static void expect_refused(swx_frame_encoder *encoder, swx_status status, size_t position)
{
    CHECK(encoder->error.status == status && encoder->error.text && encoder->error.position == position);
    CHECK(swx_frame_pack_nil(encoder) == status && swx_frame_pack_str(encoder, "a", 1) == status);
    CHECK(swx_frame_end(encoder) == status && encoder->error.position == position);
    swx_frame_cancel(encoder);
    expect_output(encoder, "\0\0\0\1\xc0", 5);
    CHECK(swx_frame_begin(encoder) == SWX_OK && swx_frame_pack_bool(encoder, true) == SWX_OK);
    CHECK(swx_frame_end(encoder) == SWX_OK);
    expect_output(encoder, "\0\0\0\1\xc0\0\0\0\1\xc3", 10);
    swx_frame_encoder_free(encoder);
}

static void test_encoder_refuses_wrong_shapes(void)
{
    swx_frame_limits any = { 0 };
    swx_frame_encoder e = opened(any);
    CHECK(swx_frame_end(&e) == SWX_EINVAL);
    expect_refused(&e, SWX_EINVAL, 0);
    e = opened(any);
    CHECK(swx_frame_pack_nil(&e) == SWX_OK && swx_frame_pack_nil(&e) == SWX_EINVAL);
    expect_refused(&e, SWX_EINVAL, 1);
    e = opened(any);
    CHECK(swx_frame_pack_map(&e, 1) == SWX_OK && swx_frame_pack_int(&e, 1) == SWX_EINVAL);
    expect_refused(&e, SWX_EINVAL, 1);
    e = opened(any);
    CHECK(swx_frame_pack_array(&e, 2) == SWX_OK && swx_frame_pack_nil(&e) == SWX_OK);
    CHECK(swx_frame_end(&e) == SWX_EINVAL);
    expect_refused(&e, SWX_EINVAL, 2);
    e = opened(any);
    CHECK(swx_frame_pack_str(&e, "\xed\xa0\x80", 3) == SWX_EINVAL);
    expect_refused(&e, SWX_EINVAL, 0);
    e = opened(any);
    CHECK(swx_frame_begin(&e) == SWX_EBUSY);
    swx_frame_cancel(&e);
    CHECK(swx_frame_pack_nil(&e) == SWX_EINVAL && swx_frame_end(&e) == SWX_EINVAL);
    swx_frame_encoder_free(&e);
}

static void test_encoder_limits(void)
{
    swx_frame_encoder e = opened((swx_frame_limits){ .max_frame = 8 });
    CHECK(swx_frame_pack_bin(&e, "123456", 6) == SWX_OK && swx_frame_end(&e) == SWX_OK);
    CHECK(swx_frame_begin(&e) == SWX_OK && swx_frame_pack_bin_ref(&e, "123456", 6) == SWX_OK);
    CHECK(swx_frame_end(&e) == SWX_OK);
    swx_frame_encoder_free(&e);
    e = opened((swx_frame_limits){ .max_frame = 8 });
    CHECK(swx_frame_pack_bin(&e, "1234567", 7) == SWX_ELIMIT);
    expect_refused(&e, SWX_ELIMIT, 2);
    e = opened((swx_frame_limits){ .max_frame = 8 });
    CHECK(swx_frame_pack_str_ref(&e, "12345678", 8) == SWX_ELIMIT);
    expect_refused(&e, SWX_ELIMIT, 1);
    e = opened((swx_frame_limits){ .max_frame = 8 });
    CHECK(swx_frame_pack_bin(&e, "", SIZE_MAX) == SWX_ELIMIT);
    expect_refused(&e, SWX_ELIMIT, 0);
    e = opened((swx_frame_limits){ .max_frame = 8 });
    CHECK(swx_frame_pack_double(&e, 1) == SWX_ELIMIT);
    expect_refused(&e, SWX_ELIMIT, 0);
    e = opened((swx_frame_limits){ .max_depth = 2 });
    CHECK(swx_frame_pack_array(&e, 1) == SWX_OK && swx_frame_pack_array(&e, 1) == SWX_OK);
    CHECK(swx_frame_pack_map(&e, 0) == SWX_ELIMIT);
    expect_refused(&e, SWX_ELIMIT, 2);
    e = opened((swx_frame_limits){ .max_items = 4 });
    CHECK(swx_frame_pack_array(&e, 3) == SWX_OK && swx_frame_pack_array(&e, 1) == SWX_ELIMIT);
    expect_refused(&e, SWX_ELIMIT, 1);
    e = opened((swx_frame_limits){ 0 });
    CHECK(swx_frame_pack_map(&e, SIZE_MAX) == SWX_ELIMIT);
    expect_refused(&e, SWX_ELIMIT, 0);
}

static void test_clear_gives_large_memory_back(void)
{
    static uint8_t chunk[1 << 20];
    swx_frame_encoder e;
    CHECK(swx_frame_encoder_init(&e, NULL, NULL) == SWX_OK && swx_frame_begin(&e) == SWX_OK);
    CHECK(swx_frame_pack_bin(&e, chunk, sizeof(chunk)) == SWX_OK && swx_frame_end(&e) == SWX_OK);
    swx_frame_encoder_clear(&e);
    CHECK(e.capacity == 0 && swx_frame_encoder_total(&e) == 0);
    CHECK(swx_frame_begin(&e) == SWX_OK && swx_frame_pack_nil(&e) == SWX_OK && swx_frame_end(&e) == SWX_OK);
    swx_frame_encoder_clear(&e);
    CHECK(e.capacity > 0 && swx_frame_encoder_total(&e) == 0);
    CHECK(swx_frame_begin(&e) == SWX_OK);
    swx_frame_encoder_clear(&e);
    CHECK(!e.open && swx_frame_begin(&e) == SWX_OK);
    swx_frame_encoder_free(&e);
}

/* ---- failing allocations ---- */

#ifdef SWX_ALLOC_TEST
/* Encodes, decodes in chunks, builds; false when any of it ran out of memory. */
static bool whole_way(void)
{
    static uint8_t chunk[3000];
    swx_frame_encoder e;
    swx_frame_decoder d;
    bool done = false;
    uint8_t bytes[8192];
    CHECK(swx_frame_encoder_init(&e, NULL, NULL) == SWX_OK && swx_frame_decoder_init(&d, NULL, NULL) == SWX_OK);
    for (int i = 0; i < 2; i++) {
        swx_status status = swx_frame_begin(&e);
        if (status == SWX_OK) {
            pack_request(&e, chunk, sizeof(chunk), i);
            status = swx_frame_end(&e);
        }
        if (status != SWX_OK) {
            CHECK(status == SWX_ENOMEM);
            goto out;
        }
    }
    size_t total = swx_frame_encoder_total(&e), frames = 0;
    CHECK(total <= sizeof(bytes));
    swx_frame_encoder_copy(&e, bytes);
    for (size_t at = 0; at < total; at += 700) {
        const uint8_t *from = bytes + at;
        size_t left = total - at < 700 ? total - at : 700;
        swx_span payload;
        swx_status status;
        while ((status = swx_frame_take(&d, &from, &left, &payload)) == SWX_OK) {
            void *value;
            if (swx_frame_build(payload.bytes, payload.size, &d.limits, &TREE, NULL, &value, NULL) != SWX_OK) {
                goto out;
            }
            drop(NULL, value);
            frames++;
        }
        if (status != SWX_MORE) {
            CHECK(status == SWX_ENOMEM && feed(&d, "", 0) == SWX_ENOMEM);
            goto out;
        }
    }
    CHECK(frames == 2);
    done = true;
out:
    swx_frame_encoder_free(&e);
    swx_frame_decoder_free(&d);
    return done;
}

static void test_every_failing_allocation(void)
{
    for (int forever = 0; forever < 2; forever++) {
        unsigned long n = 0;
        bool done;
        do {
            swx_alloc_fail_at(++n, forever);
            done = whole_way();
            CHECK(swx_alloc_live() == 0);
        } while (!done);
        CHECK(n > 20 && swx_alloc_count() == n - 1);
    }
    swx_alloc_fail_at(0, 0);
}
#else
static void test_every_failing_allocation(void) {}
#endif

static void test_library_has_a_version(void)
{
    int major;
    CHECK(sscanf(swx_frame_msgpack_version(), "%d.", &major) == 1 && major >= 1);
}

TEST_MAIN(test_good_payloads, test_bad_payloads, test_every_truncation_is_refused, test_utf8_against_arithmetic,
          test_utf8_at_every_offset_of_ascii, test_trusted_text_is_not_looked_at, test_depth_limit, test_item_limit, test_bin_is_not_copied, test_builder_stops_anywhere,
          test_no_container_is_made_on_its_word, test_one_whole_frame, test_ascii_is_copied_and_judged,
          test_every_chunk_size, test_bad_frames_at_every_cut, test_length_limit_and_empty_frame,
          test_announced_length_allocates_nothing,
          test_large_memory_goes_back_with_the_next_small_frame, test_whole_frame_in_a_chunk_is_not_copied,
          test_scalars_take_their_shortest_form, test_body_sizes_and_references, test_encoder_refuses_wrong_shapes,
          test_encoder_limits, test_clear_gives_large_memory_back, test_every_failing_allocation,
          test_library_has_a_version)
