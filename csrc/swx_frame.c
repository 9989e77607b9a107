/* Frames of msgpack: scan, build, decode, encode.  The scanner and the encoder share swx_frame_shape and thereby
 * their rules.  The builder keeps the same rules with what it has open, in one pass, where a yes or no is enough; a no
 * is explained by the scanner. */
#include "swx_frame.h"

#include <string.h>

#include <msgpack.h>

#include "swx_alloc.h"

enum { FIRST_CAPACITY = 512, KEPT_CAPACITY = 512 * 1024, KEPT_REFS = 256, MAX_HEADER = 5 /* of a str or bin */ };

/* Keeps a frequent path short; and the other way round. */
#define RARE __attribute__((noinline))
#define ALWAYS_INLINE inline __attribute__((always_inline))

static const char TOO_DEEP[] = "the value is nested deeper than max_depth";
static const char TOO_MANY[] = "the value has more than max_items items";
static const char TOO_LONG[] = "the frame is longer than max_frame";
static const char NO_MEMORY[] = "out of memory";

static swx_status fail_at(swx_error *err, swx_status status, const char *text, size_t position)
{
    swx_fail(err, status, text);
    if (err) {
        err->position = position;
    }
    return status;
}

swx_status swx_frame_limits_fill(swx_frame_limits *limits, swx_error *err)
{
    if (limits->max_depth > SWX_FRAME_DEPTH_CEILING) {
        return swx_fail(err, SWX_EINVAL, "max_depth is above 128");
    }
    limits->max_frame = limits->max_frame ? limits->max_frame : SWX_FRAME_MAX_FRAME;
    limits->max_depth = limits->max_depth ? limits->max_depth : SWX_FRAME_MAX_DEPTH;
    limits->max_items = limits->max_items ? limits->max_items : SWX_FRAME_MAX_ITEMS;
    return SWX_OK;
}

/* Makes room for `needed` elements of `each` bytes, doubling up to `most`.  False: out of memory, unchanged. */
static bool grow(void **memory, size_t *capacity, size_t needed, size_t most, size_t each)
{
    if (needed <= *capacity) {
        return true;
    }
    size_t wanted = *capacity > SIZE_MAX / 2 ? needed : *capacity * 2;
    wanted = wanted < FIRST_CAPACITY / each ? FIRST_CAPACITY / each : wanted;
    wanted = wanted > most ? most : wanted;
    wanted = wanted < needed ? needed : wanted;
    if (wanted > SIZE_MAX / each) {
        return false;
    }
    void *moved = swx_realloc(*memory, wanted * each);
    if (!moved) {
        return false;
    }
    *memory = moved;
    *capacity = wanted;
    return true;
}

/* ---- UTF-8 ---- */

static bool is_tail(uint8_t byte) { return (byte & 0xc0) == 0x80; }

/* Length of the sequence at p, or 0 when it is not well-formed (table 3-7 of the Unicode standard). */
static size_t utf8_sequence(const uint8_t *p, size_t left)
{
    uint8_t first = p[0];
    if (first < 0x80) {
        return 1;
    }
    if (first < 0xc2 || first > 0xf4) {
        return 0;
    }
    size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (left < length) {
        return 0;
    }
    uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if (!is_tail(p[i])) {
            return 0;
        }
    }
    return length;
}

typedef uint64_t pair __attribute__((vector_size(16)));

/* Text is mostly ASCII: it is looked at in blocks, each with one test. */
typedef struct {
    pair part[4];
} block;

#define HIGH_BITS UINT64_C(0x8080808080808080)

static inline bool block_is_ascii(const block *b)
{
    pair all = b->part[0] | b->part[1] | b->part[2] | b->part[3];
    return !((all[0] | all[1]) & HIGH_BITS);
}

/* Bytes in whole blocks of ASCII. */
static size_t ascii_blocks(const uint8_t *p, size_t size)
{
    size_t at = 0;
    block b;
    for (; size - at >= sizeof(b); at += sizeof(b)) {
        memcpy(&b, p + at, sizeof(b));
        if (!block_is_ascii(&b)) {
            break;
        }
    }
    return at;
}

bool swx_frame_copy_ascii(uint8_t *out, const uint8_t *bytes, size_t size)
{
    size_t at = 0;
    block b;
    for (; size - at >= sizeof(b); at += sizeof(b)) {
        memcpy(&b, bytes + at, sizeof(b));
        memcpy(out + at, &b, sizeof(b));
        if (!block_is_ascii(&b)) {
            return false;
        }
    }
    uint64_t all = 0, word;
    for (; size - at >= sizeof(word); at += sizeof(word)) {
        memcpy(&word, bytes + at, sizeof(word));
        memcpy(out + at, &word, sizeof(word));
        all |= word;
    }
    for (; at < size; at++) {
        all |= out[at] = bytes[at];
    }
    return !(all & HIGH_BITS);
}

/* Offset of the first byte that is not part of valid UTF-8, or size. */
static size_t utf8_valid(const uint8_t *p, size_t size)
{
    size_t at = ascii_blocks(p, size);
    while (at < size) {
        size_t length = utf8_sequence(p + at, size - at);
        if (!length) {
            return at;
        }
        at += length;
        if (length == 1 && at % sizeof(block) == 0) {
            at += ascii_blocks(p + at, size - at);
        }
    }
    return size;
}

/* ---- the shape of a value ---- */

typedef enum { SCALAR, STR, BIN, ARRAY, MAP, EXT, RESERVED } kind;

static void shape_start(swx_frame_shape *shape)
{
    shape->left = shape->promised = 1;
    shape->depth = 0;
    shape->map = false;
}

/* Whether the next value must be a map's key.  Not asked when none may come. */
static inline bool key_is_next(const swx_frame_shape *shape) { return (shape->left & 1) < shape->map; }

static const char *why_not(const swx_frame_shape *shape)
{
    return shape->left ? "a map key is not a str" : "a frame holds one value, and there is more";
}

/* Adds one value, whose members, if it may have any, shape_open adds next.  False: none may come, or not this one. */
static inline bool shape_add(swx_frame_shape *shape, bool is_str)
{
    if (!shape->left || (!is_str && key_is_next(shape))) {
        return false;
    }
    shape->left--;
    return true;
}

/* Goes back to the container that has members to come. */
static inline void shape_close(swx_frame_shape *shape)
{
    while (!shape->left && shape->depth) {
        shape->depth--;
        shape->left = shape->around[shape->depth].left;
        shape->map = shape->around[shape->depth].map;
    }
}

/* The value that was added is a container.  SWX_OK or SWX_ELIMIT. */
static swx_status shape_open(swx_frame_shape *shape, const swx_frame_limits *limits, bool map, uint32_t count,
                             const char **text)
{
    uint64_t members = map ? (uint64_t)count * 2 : count;
    if (shape->depth >= limits->max_depth) {
        *text = TOO_DEEP;
        return SWX_ELIMIT;
    }
    if (members > limits->max_items - shape->promised) {
        *text = TOO_MANY;
        return SWX_ELIMIT;
    }
    shape->around[shape->depth].left = shape->left;
    shape->around[shape->depth].map = shape->map;
    shape->depth++;
    shape->left = members;
    shape->map = map;
    shape->promised += members;
    return SWX_OK;
}

/* ---- scan ---- */

typedef struct {
    kind what;
    uint8_t width; /* bytes of the length or count that follows the first byte */
    uint8_t fixed; /* bytes of a value of fixed size */
} format;

/* First bytes 0xc0 to 0xdf. */
static const format FORMATS[32] = {
    { SCALAR, 0, 0 }, { RESERVED, 0, 0 }, { SCALAR, 0, 0 }, { SCALAR, 0, 0 }, /* nil, -, false, true */
    { BIN, 1, 0 },    { BIN, 2, 0 },      { BIN, 4, 0 },                      /* bin 8, 16, 32 */
    { EXT, 1, 1 },    { EXT, 2, 1 },      { EXT, 4, 1 },                      /* ext 8, 16, 32 */
    { SCALAR, 0, 4 }, { SCALAR, 0, 8 },                                       /* float 32, 64 */
    { SCALAR, 0, 1 }, { SCALAR, 0, 2 },   { SCALAR, 0, 4 }, { SCALAR, 0, 8 }, /* uint 8 to 64 */
    { SCALAR, 0, 1 }, { SCALAR, 0, 2 },   { SCALAR, 0, 4 }, { SCALAR, 0, 8 }, /* int 8 to 64 */
    { EXT, 0, 2 },    { EXT, 0, 3 },      { EXT, 0, 5 },    { EXT, 0, 9 },    { EXT, 0, 17 }, /* fixext */
    { STR, 1, 0 },    { STR, 2, 0 },      { STR, 4, 0 },                      /* str 8, 16, 32 */
    { ARRAY, 2, 0 },  { ARRAY, 4, 0 },    { MAP, 2, 0 },    { MAP, 4, 0 },
};

typedef struct {
    kind what;
    uint32_t count; /* of a container's members or pairs */
    size_t header;  /* first byte and count or length */
    size_t body;    /* bytes of content after them */
} token;

static uint64_t big_endian(const uint8_t *p, size_t width)
{
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++) {
        value = value << 8 | p[i];
    }
    return value;
}

/* Reads what the first bytes of a value say; false when they are cut.  left is at least 1. */
static ALWAYS_INLINE bool read_token(const uint8_t *p, size_t left, token *t)
{
    uint8_t first = p[0];
    *t = (token){ .what = SCALAR, .header = 1 };
    if (first < 0x80 || first >= 0xe0) {
        return true;
    }
    if (first < 0xa0) {
        t->what = first < 0x90 ? MAP : ARRAY;
        t->count = first & 0x0f;
        return true;
    }
    if (first < 0xc0) {
        t->what = STR;
        t->body = first & 0x1f;
        return true;
    }
    const format *f = &FORMATS[first - 0xc0];
    t->what = f->what;
    t->header = (size_t)1 + f->width;
    t->body = f->fixed;
    if (left < t->header) {
        return false;
    }
    uint32_t number = (uint32_t)big_endian(p + 1, f->width);
    if (f->what == ARRAY || f->what == MAP) {
        t->count = number;
    } else if (f->what != EXT) { /* an ext is refused whatever its length is */
        t->body += number;
    }
    return true;
}

/* Checks the value at p, before which there were `seen`; *step gets its size without its members, or the offset of the
 * fault. */
static swx_status scan_value(const uint8_t *p, size_t left, uint64_t seen, swx_frame_shape *shape,
                             const swx_frame_limits *limits, size_t *step, const char **text)
{
    token t;
    *step = 0;
    if (p[0] == 0xc1) {
        *text = "the byte 0xc1 is reserved";
        return SWX_EFORMAT;
    }
    if (!read_token(p, left, &t) || left - t.header < t.body) {
        *text = "the value is cut short";
        return t.what == EXT ? SWX_EUNSUPPORTED : SWX_EFORMAT;
    }
    if (t.what == EXT) {
        *text = "ext types are not accepted";
        return SWX_EUNSUPPORTED;
    }
    if (!shape_add(shape, t.what == STR)) {
        *text = why_not(shape);
        return SWX_EFORMAT;
    }
    if (t.what == ARRAY || t.what == MAP) {
        swx_status status = shape_open(shape, limits, t.what == MAP, t.count, text);
        if (status != SWX_OK) {
            return status;
        }
    }
    shape_close(shape);
    if (shape->promised - seen - 1 > left - t.header - t.body) { /* a member takes at least one byte */
        *text = "the value is cut short";
        return SWX_EFORMAT;
    }
    bool check = t.what == STR && !limits->trust_text;
    size_t valid = check ? utf8_valid(p + t.header, t.body) : t.body;
    *step = t.header + valid;
    if (valid < t.body) {
        *text = "a str is not valid UTF-8";
        return SWX_EFORMAT;
    }
    return SWX_OK;
}

swx_status swx_frame_scan(const uint8_t *payload, size_t size, const swx_frame_limits *limits, swx_error *err)
{
    swx_frame_shape shape;
    const char *text = NULL;
    size_t at = 0;
    uint64_t seen = 0;
    shape_start(&shape);
    if (!size) {
        return fail_at(err, SWX_EFORMAT, "the frame is empty", 0);
    }
    while (at < size) { /* scan_value sees to it that a missing member is found before the end */
        size_t step;
        swx_status status = scan_value(payload + at, size - at, seen++, &shape, limits, &step, &text);
        at += step;
        if (status != SWX_OK) {
            return fail_at(err, status, text, at);
        }
    }
    return SWX_OK;
}

/* ---- build ---- */

/* A container that is being filled. */
typedef struct {
    void *value;
    void *key;       /* of a map: waits for its value; NULL: it comes next */
    uint32_t filled; /* members, or pairs */
    uint32_t count;
    bool map;
} open_container;

typedef struct {
    const swx_frame_builder *make;
    void *user;
    const swx_frame_limits *limits;
    uint64_t promised; /* values announced so far, the outermost included */
    uint64_t room;     /* bytes of the payload that can be values: all but the bodies that came */
    uint32_t depth;
    open_container open[SWX_FRAME_DEPTH_CEILING];
} build_target;

static RARE void *make_number(const build_target *t, uint8_t first, const uint8_t *body, size_t width)
{
    uint64_t bits = big_endian(body, width);
    switch (first) {
    case 0xca: {
        uint32_t half = (uint32_t)bits;
        float number;
        memcpy(&number, &half, sizeof(number));
        return t->make->number(t->user, (double)number);
    }
    case 0xcb: {
        double number;
        memcpy(&number, &bits, sizeof(number));
        return t->make->number(t->user, number);
    }
    case 0xd0:
        return t->make->integer(t->user, (int8_t)bits);
    case 0xd1:
        return t->make->integer(t->user, (int16_t)bits);
    case 0xd2:
        return t->make->integer(t->user, (int32_t)bits);
    case 0xd3:
        return t->make->integer(t->user, (int64_t)bits);
    default: /* uint */
        return bits > INT64_MAX ? t->make->natural(t->user, bits) : t->make->integer(t->user, (int64_t)bits);
    }
}

static inline void *make_scalar(const build_target *t, uint8_t first, const uint8_t *body, size_t width)
{
    if (first < 0x80 || first >= 0xe0) {
        return t->make->integer(t->user, (int8_t)first);
    }
    if (first >= 0xca) {
        return make_number(t, first, body, width);
    }
    return first == 0xc0 ? t->make->nil(t->user) : t->make->boolean(t->user, first == 0xc3);
}

/* An empty map, shown to map_end, or another container that has just been opened. */
static RARE void *make_container(build_target *t, bool map, uint32_t count)
{
    uint64_t members = map ? (uint64_t)count * 2 : count;
    if (t->depth >= t->limits->max_depth || members > t->limits->max_items - t->promised ||
        t->promised + members > t->room) { /* a value takes at least one byte */
        return NULL;
    }
    t->promised += members;
    void *value = map ? t->make->map(t->user, count) : t->make->array(t->user, count);
    if (value && count) {
        t->open[t->depth++] = (open_container){ .value = value, .count = count, .map = map };
    } else if (value && map && !t->make->map_end(t->user, value, 0)) {
        t->make->drop(t->user, value);
        return NULL;
    }
    return value;
}

/* NULL: refused, or the builder stopped. */
static ALWAYS_INLINE void *make_value(build_target *t, const token *found, const uint8_t *p)
{
    const uint8_t *body = p + found->header;
    switch (found->what) {
    case STR:
        t->room -= found->body;
        if (!t->limits->trust_text && utf8_valid(body, found->body) < found->body) {
            return NULL;
        }
        return t->make->str(t->user, body, found->body);
    case BIN:
        t->room -= found->body;
        return t->make->bin(t->user, body, found->body);
    case ARRAY:
    case MAP:
        return make_container(t, found->what == MAP, found->count);
    case SCALAR:
        return make_scalar(t, *p, body, found->body);
    default:
        return NULL;
    }
}

/* Puts a value into the innermost container, that one, if it is full now, into the next, and so on.  *value becomes the
 * outermost once it is complete, else NULL.  False: the builder stopped. */
static ALWAYS_INLINE bool put_away(build_target *t, void **value)
{
    while (t->depth) {
        open_container *c = &t->open[t->depth - 1];
        void *member = *value, *key = c->key;
        *value = NULL;
        if (c->map && !key) {
            c->key = member;
            return true;
        }
        c->key = NULL;
        if (!(c->map ? t->make->map_set(t->user, c->value, c->filled, key, member)
                     : t->make->array_set(t->user, c->value, c->filled, member))) {
            return false;
        }
        if (++c->filled < c->count) {
            return true;
        }
        if (c->map && !t->make->map_end(t->user, c->value, c->count)) {
            return false;
        }
        *value = c->value;
        t->depth--;
    }
    return true;
}

/* The payload's value, or NULL. */
static void *build(build_target *t, const uint8_t *p, size_t left)
{
    token found;
    while (left && read_token(p, left, &found) && left - found.header >= found.body) {
        uint32_t depth = t->depth;
        const open_container *in = depth ? &t->open[depth - 1] : NULL;
        bool key_is_next = in && in->map && !in->key;
        void *value = key_is_next && found.what != STR ? NULL : make_value(t, &found, p);
        if (!value || (t->depth == depth && !put_away(t, &value))) {
            break;
        }
        p += found.header + found.body;
        left -= found.header + found.body;
        if (value && !t->depth) {
            if (!left) {
                return value;
            }
            t->make->drop(t->user, value);
            break;
        }
    }
    while (t->depth) {
        open_container *c = &t->open[--t->depth];
        if (c->key) {
            t->make->drop(t->user, c->key);
        }
        t->make->drop(t->user, c->value);
    }
    return NULL;
}

swx_status swx_frame_build(const uint8_t *payload, size_t size, const swx_frame_limits *limits,
                           const swx_frame_builder *builder, void *user, void **value, swx_error *err)
{
    build_target t;
    t.make = builder;
    t.user = user;
    t.limits = limits;
    t.promised = 1;
    t.room = size;
    t.depth = 0;
    *value = build(&t, payload, size);
    if (*value) {
        return SWX_OK;
    }
    swx_status status = swx_frame_scan(payload, size, limits, err);
    return status == SWX_OK ? fail_at(err, SWX_EINVAL, "the builder stopped", 0) : status;
}

/* ---- decoder ---- */

swx_status swx_frame_decoder_init(swx_frame_decoder *decoder, const swx_frame_limits *limits, swx_error *err)
{
    *decoder = (swx_frame_decoder){ .limits = limits ? *limits : (swx_frame_limits){ .max_frame = 0 } };
    return swx_frame_limits_fill(&decoder->limits, err);
}

void swx_frame_decoder_free(swx_frame_decoder *decoder)
{
    swx_free(decoder->data);
    *decoder = (swx_frame_decoder){ .limits = decoder->limits };
}

/* Gives a large store back.  Between frames, so that its size does not have to be kept. */
static void shrink(swx_frame_decoder *decoder)
{
    if (decoder->capacity > KEPT_CAPACITY) {
        swx_free(decoder->data);
        decoder->data = NULL;
        decoder->capacity = 0;
    }
}

/* Forgets a payload that was handed out. */
static void forget_payload(swx_frame_decoder *decoder)
{
    decoder->size = 0;
    decoder->delivered = false;
}

void swx_frame_decoder_reset(swx_frame_decoder *decoder)
{
    forget_payload(decoder);
    shrink(decoder);
    decoder->error = (swx_error){ .status = SWX_OK };
    decoder->position = 0;
    decoder->header_size = decoder->length = 0;
}

size_t swx_frame_decoder_pending(const swx_frame_decoder *decoder)
{
    return decoder->header_size + (decoder->delivered ? 0 : decoder->size);
}

/* Position is counted from the frame's first byte. */
static swx_status decoder_fail(swx_frame_decoder *decoder, swx_status status, const char *text, size_t position)
{
    return fail_at(&decoder->error, status, text, (size_t)decoder->position + position);
}

/* Moves up to `wanted` bytes from the chunk to out. */
static size_t move(const uint8_t **bytes, size_t *size, uint8_t *out, size_t wanted)
{
    size_t n = *size < wanted ? *size : wanted;
    if (n) {
        memcpy(out, *bytes, n);
        *bytes += n;
        *size -= n;
    }
    return n;
}

/* The payload of a whole frame at p, or of size 0 when it is not there or not what it should be. */
static inline swx_span whole_frame(const uint8_t *p, size_t size, const swx_frame_limits *limits)
{
    if (size > SWX_FRAME_HEADER) {
        uint32_t length = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
        if (length <= limits->max_frame && length <= size - SWX_FRAME_HEADER) {
            return (swx_span){ p + SWX_FRAME_HEADER, length };
        }
    }
    return (swx_span){ NULL, 0 };
}

static swx_status take_header(swx_frame_decoder *decoder, const uint8_t **bytes, size_t *size)
{
    if (decoder->header_size == SWX_FRAME_HEADER) {
        return SWX_OK;
    }
    uint8_t *out = decoder->header + decoder->header_size;
    decoder->header_size += move(bytes, size, out, SWX_FRAME_HEADER - decoder->header_size);
    if (decoder->header_size < SWX_FRAME_HEADER) {
        return SWX_MORE;
    }
    decoder->length = (size_t)big_endian(decoder->header, SWX_FRAME_HEADER);
    if (decoder->length > decoder->limits.max_frame) {
        return decoder_fail(decoder, SWX_ELIMIT, TOO_LONG, 0);
    }
    if (!decoder->length) {
        return decoder_fail(decoder, SWX_EFORMAT, "the frame is empty", 0);
    }
    if (decoder->length <= KEPT_CAPACITY) { /* large frames come in rows, and fresh pages cost more than the copy */
        shrink(decoder);
    }
    return SWX_OK;
}

swx_status swx_frame_open(const uint8_t *frame, size_t size, const swx_frame_limits *limits, swx_span *payload,
                          swx_error *err)
{
    *payload = whole_frame(frame, size, limits);
    if (payload->size && payload->size == size - SWX_FRAME_HEADER) {
        return SWX_OK;
    }
    *payload = (swx_span){ NULL, 0 };
    swx_frame_decoder decoder = { .limits = *limits };
    size_t left = size;
    swx_status status = take_header(&decoder, &frame, &left);
    if (status != SWX_OK && status != SWX_MORE) {
        *err = decoder.error;
        return status;
    }
    if (status == SWX_MORE || left < decoder.length) {
        return fail_at(err, SWX_EFORMAT, "the frame is cut short", size);
    }
    return fail_at(err, SWX_EFORMAT, "there is more after the frame", SWX_FRAME_HEADER + decoder.length);
}

static swx_status take_payload(swx_frame_decoder *decoder, const uint8_t **bytes, size_t *size, swx_span *payload)
{
    if (!decoder->size && *size >= decoder->length && !decoder->copies) {
        *payload = (swx_span){ *bytes, decoder->length };
        *bytes += decoder->length;
        *size -= decoder->length;
        return SWX_OK;
    }
    if (!*size) {
        return SWX_MORE;
    }
    size_t missing = decoder->length - decoder->size;
    size_t needed = decoder->size + (*size < missing ? *size : missing);
    void *data = decoder->data;
    if (!grow(&data, &decoder->capacity, needed, decoder->length, 1)) {
        return decoder_fail(decoder, SWX_ENOMEM, NO_MEMORY, 0);
    }
    decoder->data = data;
    decoder->size += move(bytes, size, decoder->data + decoder->size, missing);
    if (decoder->size < decoder->length) {
        return SWX_MORE;
    }
    *payload = (swx_span){ decoder->data, decoder->length };
    decoder->delivered = true;
    return SWX_OK;
}

swx_status swx_frame_take(swx_frame_decoder *decoder, const uint8_t **bytes, size_t *size, swx_span *payload)
{
    *payload = (swx_span){ NULL, 0 };
    if (decoder->error.status != SWX_OK) {
        return decoder->error.status;
    }
    if (decoder->delivered) {
        forget_payload(decoder);
    }
    if (!decoder->header_size && !decoder->copies && decoder->capacity <= KEPT_CAPACITY) { /* as most come */
        *payload = whole_frame(*bytes, *size, &decoder->limits);
        if (payload->size) {
            *bytes += SWX_FRAME_HEADER + payload->size;
            *size -= SWX_FRAME_HEADER + payload->size;
            decoder->position += SWX_FRAME_HEADER + payload->size;
            return SWX_OK;
        }
    }
    swx_status status = take_header(decoder, bytes, size);
    if (status != SWX_OK) {
        return status;
    }
    status = take_payload(decoder, bytes, size, payload);
    if (status != SWX_OK) {
        return status;
    }
    decoder->position += SWX_FRAME_HEADER + decoder->length;
    decoder->header_size = decoder->length = 0;
    return SWX_OK;
}

void swx_frame_stop(swx_frame_decoder *decoder, swx_span payload, const swx_error *err)
{
    decoder->error = *err;
    decoder->error.position += (size_t)decoder->position - payload.size;
}

/* ---- encoder ---- */

swx_status swx_frame_encoder_init(swx_frame_encoder *encoder, const swx_frame_limits *limits, swx_error *err)
{
    *encoder = (swx_frame_encoder){ .limits = limits ? *limits : (swx_frame_limits){ .max_frame = 0 } };
    return swx_frame_limits_fill(&encoder->limits, err);
}

void swx_frame_encoder_free(swx_frame_encoder *encoder)
{
    swx_free(encoder->data);
    swx_free(encoder->refs);
    *encoder = (swx_frame_encoder){ .limits = encoder->limits };
}

void swx_frame_encoder_clear(swx_frame_encoder *encoder)
{
    if (encoder->capacity > KEPT_CAPACITY || encoder->ref_capacity > KEPT_REFS) {
        swx_frame_encoder_free(encoder);
        return;
    }
    encoder->size = encoder->ref_count = 0;
    swx_frame_cancel(encoder);
}

void swx_frame_cancel(swx_frame_encoder *encoder)
{
    if (encoder->open) {
        encoder->size = encoder->size < encoder->start ? encoder->size : encoder->start;
        encoder->ref_count = encoder->ref_count < encoder->start_refs ? encoder->ref_count : encoder->start_refs;
    }
    encoder->open = false;
    encoder->shape.left = 0;
    encoder->error.status = SWX_OK;
}

/* Bytes of the open frame's payload so far. */
static size_t payload_size(const swx_frame_encoder *encoder)
{
    return encoder->size - encoder->start - SWX_FRAME_HEADER + encoder->referred;
}

/* A frame that failed takes no more values. */
static swx_status encoder_fail(swx_frame_encoder *encoder, swx_status status, const char *text)
{
    encoder->shape.left = 0;
    return fail_at(&encoder->error, status, text, payload_size(encoder));
}

static bool reserve(swx_frame_encoder *encoder, size_t extra)
{
    void *data = encoder->data;
    if (extra > SIZE_MAX - encoder->size ||
        !grow(&data, &encoder->capacity, encoder->size + extra, SIZE_MAX, 1)) {
        return false;
    }
    encoder->data = data;
    return true;
}

/* Where data has to stop, by its memory or by the frame's limit, whichever comes first. */
static void set_room(swx_frame_encoder *encoder)
{
    size_t left = encoder->limits.max_frame - payload_size(encoder);
    encoder->room = encoder->capacity - encoder->size < left ? encoder->capacity : encoder->size + left;
}

swx_status swx_frame_begin(swx_frame_encoder *encoder)
{
    if (encoder->open) {
        return SWX_EBUSY;
    }
    if (!reserve(encoder, SWX_FRAME_HEADER)) {
        return SWX_ENOMEM;
    }
    encoder->start = encoder->size;
    encoder->start_refs = encoder->ref_count;
    encoder->referred = 0;
    encoder->size += SWX_FRAME_HEADER;
    encoder->error.status = SWX_OK;
    encoder->open = true;
    set_room(encoder);
    shape_start(&encoder->shape);
    return SWX_OK;
}

static swx_status check_room(swx_frame_encoder *encoder, size_t size)
{
    if (size > encoder->limits.max_frame - payload_size(encoder)) {
        return encoder_fail(encoder, SWX_ELIMIT, TOO_LONG);
    }
    return SWX_OK;
}

static RARE swx_status make_room(swx_frame_encoder *encoder, size_t size)
{
    swx_status status = check_room(encoder, size);
    if (status != SWX_OK) {
        return status;
    }
    if (!reserve(encoder, size)) {
        return encoder_fail(encoder, SWX_ENOMEM, NO_MEMORY);
    }
    set_room(encoder);
    return SWX_OK;
}

/* Where msgpack-c's packer writes: 0, or -1 with the frame's error set. */
static ALWAYS_INLINE int append(void *to, const char *bytes, size_t size)
{
    swx_frame_encoder *encoder = to;
    if (size > encoder->room - encoder->size && make_room(encoder, size) != SWX_OK) {
        return -1;
    }
    if (size) {
        memcpy(encoder->data + encoder->size, bytes, size);
        encoder->size += size;
    }
    return 0;
}

/* A packer whose target the compiler sees, so that it writes here without a call for each piece. */
#define TO(encoder) (&(msgpack_packer){ .data = (encoder), .callback = append })

/* Why the frame does not take a value. */
static RARE swx_status turned_away(swx_frame_encoder *encoder)
{
    if (!encoder->open) {
        return SWX_EINVAL;
    }
    if (encoder->error.status != SWX_OK) {
        return encoder->error.status;
    }
    return encoder_fail(encoder, SWX_EINVAL, why_not(&encoder->shape));
}

#define PACK_SCALAR(encoder, write)                                          \
    do {                                                                     \
        if (!shape_add(&(encoder)->shape, false)) {                          \
            return turned_away(encoder);                                     \
        }                                                                    \
        shape_close(&(encoder)->shape);                                      \
        return (write) == 0 ? SWX_OK : (encoder)->error.status;              \
    } while (0)

swx_status swx_frame_pack_nil(swx_frame_encoder *encoder) { PACK_SCALAR(encoder, msgpack_pack_nil(TO(encoder))); }

swx_status swx_frame_pack_bool(swx_frame_encoder *encoder, bool value)
{
    PACK_SCALAR(encoder, value ? msgpack_pack_true(TO(encoder)) : msgpack_pack_false(TO(encoder)));
}

swx_status swx_frame_pack_int(swx_frame_encoder *encoder, int64_t value)
{
    PACK_SCALAR(encoder, msgpack_pack_int64(TO(encoder), value));
}

swx_status swx_frame_pack_uint(swx_frame_encoder *encoder, uint64_t value)
{
    PACK_SCALAR(encoder, msgpack_pack_uint64(TO(encoder), value));
}

swx_status swx_frame_pack_double(swx_frame_encoder *encoder, double value)
{
    PACK_SCALAR(encoder, msgpack_pack_double(TO(encoder), value));
}

static swx_status pack_container(swx_frame_encoder *encoder, bool map, size_t count)
{
    const char *text;
    if (!shape_add(&encoder->shape, false)) {
        return turned_away(encoder);
    }
    /* One too large for its header has too many items for any limit. */
    uint32_t clamped = count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
    swx_status status = shape_open(&encoder->shape, &encoder->limits, map, clamped, &text);
    if (status != SWX_OK) {
        return encoder_fail(encoder, status, text);
    }
    shape_close(&encoder->shape);
    return (map ? msgpack_pack_map(TO(encoder), count) : msgpack_pack_array(TO(encoder), count)) == 0 ? SWX_OK : encoder->error.status;
}

swx_status swx_frame_pack_array(swx_frame_encoder *encoder, size_t count)
{
    return pack_container(encoder, false, count);
}

swx_status swx_frame_pack_map(swx_frame_encoder *encoder, size_t count)
{
    return pack_container(encoder, true, count);
}

static swx_status refer(swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    void *refs = encoder->refs;
    if (!grow(&refs, &encoder->ref_capacity, encoder->ref_count + 1, SIZE_MAX, sizeof(swx_frame_ref))) {
        return encoder_fail(encoder, SWX_ENOMEM, NO_MEMORY);
    }
    encoder->refs = refs;
    encoder->refs[encoder->ref_count++] = (swx_frame_ref){ encoder->size, bytes, size };
    encoder->referred += size;
    set_room(encoder);
    return SWX_OK;
}

/* Where nothing is in the way of it. */
static inline void copy_short(uint8_t *out, const uint8_t *bytes, size_t size)
{
    if (size > 16) {
        memcpy(out, bytes, size);
    } else if (size >= 8) { /* as two numbers, which may overlap */
        memcpy(out, bytes, 8);
        memcpy(out + size - 8, bytes + size - 8, 8);
    } else if (size >= 4) {
        memcpy(out, bytes, 4);
        memcpy(out + size - 4, bytes + size - 4, 4);
    } else if (size) {
        out[0] = bytes[0];
        out[size / 2] = bytes[size / 2];
        out[size - 1] = bytes[size - 1];
    }
}

/* A str or bin with little or no room: everything is checked before its first byte is written. */
static RARE swx_status pack_long(swx_frame_encoder *encoder, bool str, const void *bytes, size_t size, bool by_reference)
{
    if (check_room(encoder, size) != SWX_OK) {
        return SWX_ELIMIT;
    }
    if (str && !encoder->limits.trust_text && utf8_valid(bytes, size) < size) {
        return encoder_fail(encoder, SWX_EINVAL, "a str is not valid UTF-8");
    }
    if ((str ? msgpack_pack_str(TO(encoder), size) : msgpack_pack_bin(TO(encoder), size)) || check_room(encoder, size) != SWX_OK) {
        return encoder->error.status;
    }
    if (by_reference && size) {
        return refer(encoder, bytes, size);
    }
    return append(encoder, bytes, size) ? encoder->error.status : SWX_OK;
}

/* Made for each of the two, which are the most frequent values. */
static ALWAYS_INLINE swx_status pack_body(swx_frame_encoder *encoder, bool str, const void *bytes, size_t size)
{
    if (!shape_add(&encoder->shape, str)) {
        return turned_away(encoder);
    }
    shape_close(&encoder->shape);
    size_t room = encoder->room - encoder->size;
    if (room < MAX_HEADER || size > room - MAX_HEADER || (str && !encoder->limits.trust_text)) {
        return pack_long(encoder, str, bytes, size, false);
    }
    (void)(str ? msgpack_pack_str(TO(encoder), size) : msgpack_pack_bin(TO(encoder), size));
    copy_short(encoder->data + encoder->size, bytes, size);
    encoder->size += size;
    return SWX_OK;
}

static swx_status pack_ref(swx_frame_encoder *encoder, bool str, const void *bytes, size_t size)
{
    if (!shape_add(&encoder->shape, str)) {
        return turned_away(encoder);
    }
    shape_close(&encoder->shape);
    return pack_long(encoder, str, bytes, size, true);
}

swx_status swx_frame_pack_str(swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    return pack_body(encoder, true, bytes, size);
}

swx_status swx_frame_pack_bin(swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    return pack_body(encoder, false, bytes, size);
}

swx_status swx_frame_pack_str_ref(swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    return pack_ref(encoder, true, bytes, size);
}

swx_status swx_frame_pack_bin_ref(swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    return pack_ref(encoder, false, bytes, size);
}

swx_status swx_frame_end(swx_frame_encoder *encoder)
{
    if (!encoder->open) {
        return SWX_EINVAL;
    }
    if (encoder->error.status != SWX_OK) {
        return encoder->error.status;
    }
    if (encoder->shape.left || encoder->shape.depth) {
        return encoder_fail(encoder, SWX_EINVAL, "the frame's value is not complete");
    }
    size_t length = payload_size(encoder);
    for (size_t i = 0; i < SWX_FRAME_HEADER; i++) {
        encoder->data[encoder->start + i] = (uint8_t)(length >> (8 * (SWX_FRAME_HEADER - 1 - i)));
    }
    encoder->open = false;
    return SWX_OK;
}

size_t swx_frame_encoder_total(const swx_frame_encoder *encoder)
{
    size_t total = encoder->size;
    for (size_t i = 0; i < encoder->ref_count; i++) {
        total += encoder->refs[i].size;
    }
    return total;
}

/* Even pieces are our own bytes, odd ones the caller's between them. */
swx_span swx_frame_encoder_piece(const swx_frame_encoder *encoder, size_t index)
{
    size_t ref = index / 2;
    if (ref > encoder->ref_count || (index & 1 && ref == encoder->ref_count)) {
        return (swx_span){ NULL, 0 };
    }
    if (index & 1) {
        return (swx_span){ encoder->refs[ref].bytes, encoder->refs[ref].size };
    }
    size_t from = ref ? encoder->refs[ref - 1].offset : 0;
    size_t to = ref < encoder->ref_count ? encoder->refs[ref].offset : encoder->size;
    return (swx_span){ to > from ? encoder->data + from : NULL, to - from };
}

void swx_frame_encoder_copy(const swx_frame_encoder *encoder, uint8_t *out)
{
    for (size_t i = 0; i <= encoder->ref_count * 2; i++) {
        swx_span piece = swx_frame_encoder_piece(encoder, i);
        if (piece.size) {
            memcpy(out, piece.bytes, piece.size);
            out += piece.size;
        }
    }
}

const char *swx_frame_msgpack_version(void) { return MSGPACK_VERSION; }
