/* Frames of msgpack: scan, build, decode, encode.  The scanner and the encoder share swx_frame_shape and thereby
 * their rules; the decoder runs the scanner on a payload, and only what passes reaches msgpack-c. */
#include "swx_frame.h"

#include <string.h>

/* msgpack-c sizes the parser's stack at compile time and stops when it is full. */
#define MSGPACK_EMBED_STACK_SIZE SWX_FRAME_DEPTH_CEILING
#include <msgpack.h>
#include <msgpack/unpack_define.h>

#include "swx_alloc.h"

enum { FIRST_CAPACITY = 512, KEPT_CAPACITY = 512 * 1024, KEPT_REFS = 256 };

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

/* Text is mostly ASCII: blocks of it are skipped with one test. */
static size_t ascii_blocks(const uint8_t *p, size_t size)
{
    size_t at = 0;
    while (size - at >= 32) {
        uint64_t word[4];
        memcpy(word, p + at, sizeof(word));
        if ((word[0] | word[1] | word[2] | word[3]) & UINT64_C(0x8080808080808080)) {
            break;
        }
        at += 32;
    }
    return at;
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
        if (length == 1 && (at & 31) == 0) {
            at += ascii_blocks(p + at, size - at);
        }
    }
    return size;
}

/* ---- the shape of a value ---- */

typedef enum { SCALAR, STR, BIN, ARRAY, MAP, EXT, RESERVED } kind;

static void shape_start(swx_frame_shape *shape)
{
    shape->depth = 0;
    shape->promised = 1;
    shape->seen = 0;
}

static bool shape_complete(const swx_frame_shape *shape) { return shape->seen == shape->promised; }

/* Members that are announced and have not come. */
static uint64_t shape_missing(const swx_frame_shape *shape) { return shape->promised - shape->seen; }

static bool key_is_next(const swx_frame_shape *shape)
{
    return shape->depth && shape->level[shape->depth - 1].map && !(shape->level[shape->depth - 1].left & 1);
}

static swx_status shape_open(swx_frame_shape *shape, const swx_frame_limits *limits, bool map, uint64_t members,
                             const char **text)
{
    if (shape->depth >= limits->max_depth) {
        *text = TOO_DEEP;
        return SWX_ELIMIT;
    }
    if (members > limits->max_items - shape->promised) {
        *text = TOO_MANY;
        return SWX_ELIMIT;
    }
    shape->promised += members;
    shape->level[shape->depth].left = members;
    shape->level[shape->depth].map = map;
    shape->depth++;
    return SWX_OK;
}

/* Adds one value; count is for containers. */
static swx_status shape_add(swx_frame_shape *shape, const swx_frame_limits *limits, kind what, uint32_t count,
                            const char **text)
{
    if (shape_complete(shape)) {
        *text = "a frame holds one value, and there is more";
        return SWX_EFORMAT;
    }
    if (what != STR && key_is_next(shape)) {
        *text = "a map key is not a str";
        return SWX_EFORMAT;
    }
    if (shape->depth) {
        shape->level[shape->depth - 1].left--;
    }
    shape->seen++;
    if (what == ARRAY || what == MAP) {
        uint64_t members = what == MAP ? (uint64_t)count * 2 : count;
        swx_status status = shape_open(shape, limits, what == MAP, members, text);
        if (status != SWX_OK) {
            return status;
        }
    }
    while (shape->depth && !shape->level[shape->depth - 1].left) {
        shape->depth--;
    }
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

static uint32_t big_endian(const uint8_t *p, size_t width)
{
    uint32_t value = 0;
    for (size_t i = 0; i < width; i++) {
        value = value << 8 | p[i];
    }
    return value;
}

/* Reads what the first bytes of a value say; false when they are cut.  left is at least 1. */
static bool read_token(const uint8_t *p, size_t left, token *t)
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
    uint32_t number = big_endian(p + 1, f->width);
    if (f->what == ARRAY || f->what == MAP) {
        t->count = number;
    } else if (f->what != EXT) { /* an ext is refused whatever its length is */
        t->body += number;
    }
    return true;
}

/* Checks the value at p; *step gets its size without its members, or the offset of the fault. */
static swx_status scan_value(const uint8_t *p, size_t left, swx_frame_shape *shape, const swx_frame_limits *limits,
                             size_t *step, const char **text)
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
    swx_status status = shape_add(shape, limits, t.what, t.count, text);
    if (status != SWX_OK) {
        return status;
    }
    if (shape_missing(shape) > left - t.header - t.body) { /* a member takes at least one byte */
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
    shape_start(&shape);
    if (!size) {
        return fail_at(err, SWX_EFORMAT, "the frame is empty", 0);
    }
    while (at < size) { /* scan_value sees to it that a missing member is found before the end */
        size_t step;
        swx_status status = scan_value(payload + at, size - at, &shape, limits, &step, &text);
        at += step;
        if (status != SWX_OK) {
            return fail_at(err, status, text, at);
        }
    }
    return SWX_OK;
}

/* ---- build: callbacks for msgpack-c's parser ---- */

typedef struct {
    const swx_frame_builder *make;
    void *user;
} build_target;

typedef struct {
    void *value;
    uint32_t filled; /* members or pairs that a container has */
    uint32_t count;  /* those that it will have; 0 for other values */
} build_object;

#define msgpack_unpack_struct(name) struct build##name
#define msgpack_unpack_func(ret, name) static inline ret build##name
#define msgpack_unpack_callback(name) on##name
#define msgpack_unpack_object build_object
#define msgpack_unpack_user build_target

static int made(build_object *o, void *value)
{
    *o = (build_object){ .value = value };
    return value ? 0 : -1;
}

static build_object on_root(build_target *t)
{
    (void)t;
    return (build_object){ .value = NULL };
}

static int on_nil(build_target *t, build_object *o) { return made(o, t->make->nil(t->user)); }
static int on_true(build_target *t, build_object *o) { return made(o, t->make->boolean(t->user, true)); }
static int on_false(build_target *t, build_object *o) { return made(o, t->make->boolean(t->user, false)); }
static int on_int64(build_target *t, int64_t d, build_object *o) { return made(o, t->make->integer(t->user, d)); }
static int on_int32(build_target *t, int32_t d, build_object *o) { return on_int64(t, d, o); }
static int on_int16(build_target *t, int16_t d, build_object *o) { return on_int64(t, d, o); }
static int on_int8(build_target *t, int8_t d, build_object *o) { return on_int64(t, d, o); }
static int on_uint32(build_target *t, uint32_t d, build_object *o) { return on_int64(t, d, o); }
static int on_uint16(build_target *t, uint16_t d, build_object *o) { return on_int64(t, d, o); }
static int on_uint8(build_target *t, uint8_t d, build_object *o) { return on_int64(t, d, o); }

static int on_uint64(build_target *t, uint64_t d, build_object *o)
{
    return d > INT64_MAX ? made(o, t->make->natural(t->user, d)) : on_int64(t, (int64_t)d, o);
}

static int on_double(build_target *t, double d, build_object *o) { return made(o, t->make->number(t->user, d)); }
static int on_float(build_target *t, float d, build_object *o) { return on_double(t, (double)d, o); }

/* The parser leaves the pointer of an empty str or bin unset. */
static const uint8_t *body_of(const char *base, const char *p, unsigned int size)
{
    return (const uint8_t *)(size ? p : base);
}

static int on_str(build_target *t, const char *base, const char *p, unsigned int size, build_object *o)
{
    return made(o, t->make->str(t->user, body_of(base, p, size), size));
}

static int on_bin(build_target *t, const char *base, const char *p, unsigned int size, build_object *o)
{
    return made(o, t->make->bin(t->user, body_of(base, p, size), size));
}

static int on_ext(build_target *t, const char *base, const char *p, unsigned int size, build_object *o)
{
    (void)t, (void)base, (void)p, (void)size, (void)o;
    return MSGPACK_UNPACK_PARSE_ERROR;
}

static int opened(build_object *o, void *value, uint32_t count)
{
    *o = (build_object){ .value = value, .count = count };
    return value ? 0 : -1;
}

static int on_array(build_target *t, unsigned int count, build_object *o)
{
    return opened(o, t->make->array(t->user, count), count);
}

static int on_array_item(build_target *t, build_object *array, build_object item)
{
    return t->make->array_set(t->user, array->value, array->filled++, item.value) ? 0 : -1;
}

static int on_map(build_target *t, unsigned int count, build_object *o)
{
    return opened(o, t->make->map(t->user, count), count);
}

static int on_map_item(build_target *t, build_object *map, build_object key, build_object value)
{
    return t->make->map_set(t->user, map->value, map->filled++, key.value, value.value) ? 0 : -1;
}

struct build_context;
typedef struct build_context build_context;

#include <msgpack/unpack_template.h>

/* Whether a map's key waits for its value.  The one whose pair on_map_item has just failed to set does not: then a
 * pair more is filled than the parser, which counts those to come, has counted. */
static bool key_waits(const struct build_stack *open)
{
    return open->ct == MSGPACK_CT_MAP_VALUE && open->obj.filled + open->count == open->obj.count;
}

/* Gives up what the open containers of a stopped parser hold. */
static void drop_open(build_context *context)
{
    build_target *t = &context->user;
    for (unsigned int i = context->top; i-- > 0;) {
        struct build_stack *open = &context->stack[i];
        if (key_waits(open)) {
            t->make->drop(t->user, open->map_key.value);
        }
        t->make->drop(t->user, open->obj.value);
    }
}

swx_status swx_frame_build(const uint8_t *payload, size_t size, const swx_frame_builder *builder, void *user,
                           void **value)
{
    build_context context;
    size_t used = 0;
    context.user = (build_target){ builder, user };
    build_init(&context);
    *value = NULL;
    int result = build_execute(&context, (const char *)payload, size, &used);
    if (result == 1 && used == size) {
        *value = build_data(&context).value;
        return SWX_OK;
    }
    if (result == 1) {
        builder->drop(user, build_data(&context).value);
        return SWX_EFORMAT;
    }
    drop_open(&context);
    return result == 0 ? SWX_EFORMAT : SWX_EINVAL;
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
    decoder->length = big_endian(decoder->header, SWX_FRAME_HEADER);
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

static swx_status take_payload(swx_frame_decoder *decoder, const uint8_t **bytes, size_t *size, swx_span *payload)
{
    if (!decoder->size && *size >= decoder->length) {
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
    swx_status status = take_header(decoder, bytes, size);
    if (status != SWX_OK) {
        return status;
    }
    swx_span whole;
    status = take_payload(decoder, bytes, size, &whole);
    if (status != SWX_OK) {
        return status;
    }
    swx_error err;
    status = swx_frame_scan(whole.bytes, whole.size, &decoder->limits, &err);
    if (status != SWX_OK) {
        return decoder_fail(decoder, status, err.text, SWX_FRAME_HEADER + err.position);
    }
    decoder->position += SWX_FRAME_HEADER + decoder->length;
    decoder->header_size = decoder->length = 0;
    *payload = whole;
    return SWX_OK;
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
    encoder->error = (swx_error){ .status = SWX_OK };
}

/* Bytes of the open frame's payload so far. */
static size_t payload_size(const swx_frame_encoder *encoder)
{
    return encoder->size - encoder->start - SWX_FRAME_HEADER + encoder->referred;
}

static swx_status encoder_fail(swx_frame_encoder *encoder, swx_status status, const char *text)
{
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
    encoder->error = (swx_error){ .status = SWX_OK };
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

static swx_status make_room(swx_frame_encoder *encoder, size_t size)
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

/* The write callback of msgpack-c's packer. */
static int append(void *user, const char *bytes, size_t size)
{
    swx_frame_encoder *encoder = user;
    if (size > encoder->room - encoder->size && make_room(encoder, size) != SWX_OK) {
        return -1;
    }
    if (size) {
        memcpy(encoder->data + encoder->size, bytes, size);
        encoder->size += size;
    }
    return 0;
}

static msgpack_packer packer(swx_frame_encoder *encoder)
{
    return (msgpack_packer){ .data = encoder, .callback = append };
}

/* What comes before each value. */
static swx_status enter(swx_frame_encoder *encoder, kind what, uint32_t count)
{
    const char *text;
    if (!encoder->open) {
        return SWX_EINVAL;
    }
    if (encoder->error.status != SWX_OK) {
        return encoder->error.status;
    }
    swx_status status = shape_add(&encoder->shape, &encoder->limits, what, count, &text);
    if (status != SWX_OK) {
        return encoder_fail(encoder, status == SWX_EFORMAT ? SWX_EINVAL : status, text);
    }
    return SWX_OK;
}

#define PACK(encoder, what, count, call)             \
    do {                                             \
        swx_status status = enter(encoder, what, count); \
        if (status != SWX_OK) {                      \
            return status;                           \
        }                                            \
        msgpack_packer pk = packer(encoder);         \
        (void)(call);                                \
        return (encoder)->error.status;              \
    } while (0)

swx_status swx_frame_pack_nil(swx_frame_encoder *encoder) { PACK(encoder, SCALAR, 0, msgpack_pack_nil(&pk)); }

swx_status swx_frame_pack_bool(swx_frame_encoder *encoder, bool value)
{
    PACK(encoder, SCALAR, 0, value ? msgpack_pack_true(&pk) : msgpack_pack_false(&pk));
}

swx_status swx_frame_pack_int(swx_frame_encoder *encoder, int64_t value)
{
    PACK(encoder, SCALAR, 0, msgpack_pack_int64(&pk, value));
}

swx_status swx_frame_pack_uint(swx_frame_encoder *encoder, uint64_t value)
{
    PACK(encoder, SCALAR, 0, msgpack_pack_uint64(&pk, value));
}

swx_status swx_frame_pack_double(swx_frame_encoder *encoder, double value)
{
    PACK(encoder, SCALAR, 0, msgpack_pack_double(&pk, value));
}

/* A container too large for its header has too many items for any limit. */
static uint32_t clamp(size_t count) { return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX; }

swx_status swx_frame_pack_array(swx_frame_encoder *encoder, size_t count)
{
    PACK(encoder, ARRAY, clamp(count), msgpack_pack_array(&pk, count));
}

swx_status swx_frame_pack_map(swx_frame_encoder *encoder, size_t count)
{
    PACK(encoder, MAP, clamp(count), msgpack_pack_map(&pk, count));
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

/* A str or bin: everything is checked before its first byte is written. */
static swx_status pack_body(swx_frame_encoder *encoder, kind what, const void *bytes, size_t size, bool by_reference)
{
    swx_status status = enter(encoder, what, 0);
    if (status != SWX_OK || (status = check_room(encoder, size)) != SWX_OK) {
        return status;
    }
    if (what == STR && !encoder->limits.trust_text && utf8_valid(bytes, size) < size) {
        return encoder_fail(encoder, SWX_EINVAL, "a str is not valid UTF-8");
    }
    msgpack_packer pk = packer(encoder);
    if ((what == STR ? msgpack_pack_str(&pk, size) : msgpack_pack_bin(&pk, size)) ||
        check_room(encoder, size) != SWX_OK) {
        return encoder->error.status;
    }
    if (by_reference && size) {
        return refer(encoder, bytes, size);
    }
    (void)(what == STR ? msgpack_pack_str_body(&pk, bytes, size) : msgpack_pack_bin_body(&pk, bytes, size));
    return encoder->error.status;
}

swx_status swx_frame_pack_str(swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    return pack_body(encoder, STR, bytes, size, false);
}

swx_status swx_frame_pack_bin(swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    return pack_body(encoder, BIN, bytes, size, false);
}

swx_status swx_frame_pack_str_ref(swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    return pack_body(encoder, STR, bytes, size, true);
}

swx_status swx_frame_pack_bin_ref(swx_frame_encoder *encoder, const void *bytes, size_t size)
{
    return pack_body(encoder, BIN, bytes, size, true);
}

swx_status swx_frame_end(swx_frame_encoder *encoder)
{
    if (!encoder->open) {
        return SWX_EINVAL;
    }
    if (encoder->error.status != SWX_OK) {
        return encoder->error.status;
    }
    if (!shape_complete(&encoder->shape)) {
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

const char *swx_frame_msgpack_version(void) { return msgpack_version(); }
