/* libFuzzer target for frames.  The first three bytes of the input choose limits, cuts and whether the rest is a raw
 * stream or one payload.  What must hold:
 *   - any cut of a stream gives the same frames, and the same error at the same position;
 *   - the builder takes what the scanner takes, and says the same about the rest;
 *   - what was built can be encoded again; encoding that gives it back;
 *   - the builder is never asked for more members than there are bytes. */
#include "swx_frame.h"

#include <stdlib.h>
#include <string.h>

#define MUST(condition) \
    do {                \
        if (!(condition)) { \
            __builtin_trap(); \
        }               \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- a builder that writes what it is told into an encoder; its values are the encoder ---- */

/* What a payload has before its fault may be no frame. */
static void *packed(void *user, swx_status status)
{
    return status == SWX_OK ? user : NULL;
}

static void *pack_nil(void *user) { return packed(user, swx_frame_pack_nil(user)); }
static void *pack_bool(void *user, bool value) { return packed(user, swx_frame_pack_bool(user, value)); }
static void *pack_int(void *user, int64_t value) { return packed(user, swx_frame_pack_int(user, value)); }
static void *pack_double(void *user, double value) { return packed(user, swx_frame_pack_double(user, value)); }
static void *pack_array(void *user, uint32_t count) { return packed(user, swx_frame_pack_array(user, count)); }
static void *pack_map(void *user, uint32_t count) { return packed(user, swx_frame_pack_map(user, count)); }

static void *pack_natural(void *user, uint64_t value)
{
    MUST(value > INT64_MAX);
    return packed(user, swx_frame_pack_uint(user, value));
}

static void *pack_str(void *user, const uint8_t *bytes, size_t size)
{
    return packed(user, (size & 1 ? swx_frame_pack_str : swx_frame_pack_str_ref)(user, bytes, size));
}

static void *pack_bin(void *user, const uint8_t *bytes, size_t size)
{
    return packed(user, (size & 1 ? swx_frame_pack_bin : swx_frame_pack_bin_ref)(user, bytes, size));
}

static bool set_item(void *user, void *array, uint32_t index, void *value)
{
    (void)index;
    return array == user && value == user;
}

static bool set_pair(void *user, void *map, uint32_t index, void *key, void *value)
{
    (void)index;
    return map == user && key == user && value == user;
}

static bool end_map(void *user, void *map, uint32_t count)
{
    (void)count;
    return map == user;
}

static void drop(void *user, void *value) { MUST(value == user); }

static const swx_frame_builder REPACK = {
    .nil = pack_nil, .boolean = pack_bool, .integer = pack_int, .natural = pack_natural, .number = pack_double,
    .str = pack_str, .bin = pack_bin, .array = pack_array, .array_set = set_item, .map = pack_map,
    .map_set = set_pair, .map_end = end_map, .drop = drop,
};

/* Appends the frame that the payload means, or stops the decoder. */
static swx_status repack(swx_frame_decoder *decoder, swx_span payload, swx_frame_encoder *encoder)
{
    void *value;
    swx_error scanned = { .status = SWX_OK }, built = scanned;
    swx_status status = swx_frame_scan(payload.bytes, payload.size, &decoder->limits, &scanned);
    MUST(swx_frame_begin(encoder) == SWX_OK);
    MUST(swx_frame_build(payload.bytes, payload.size, &decoder->limits, &REPACK, encoder, &value, &built) == status);
    MUST(value == (status == SWX_OK ? encoder : NULL));
    MUST(scanned.position == built.position && scanned.text == built.text);
    if (status == SWX_OK) {
        MUST(swx_frame_end(encoder) == SWX_OK);
    } else {
        swx_frame_cancel(encoder);
        swx_frame_stop(decoder, payload, &built);
    }
    return status;
}

/* ---- decoding at cuts ---- */

typedef struct {
    swx_status status;
    size_t position;
    size_t pending;
    size_t frames;
    uint8_t *bytes; /* the frames, encoded again */
    size_t size;
} outcome;

/* chunk 0: all at once.  Chunks are blocks of their own, so that a read past one is seen. */
static outcome decode(const uint8_t *data, size_t size, const swx_frame_limits *limits, size_t chunk)
{
    /* A float of 32 bits grows to 64. */
    swx_frame_limits roomy = { .max_depth = SWX_FRAME_DEPTH_CEILING, .max_items = limits->max_items };
    swx_frame_decoder decoder;
    swx_frame_encoder encoder;
    outcome result = { .status = SWX_MORE };
    uint8_t *out = NULL;
    MUST(swx_frame_decoder_init(&decoder, limits, NULL) == SWX_OK);
    decoder.copies = chunk & 1;
    MUST(swx_frame_encoder_init(&encoder, &roomy, NULL) == SWX_OK);
    for (size_t at = 0; at < size && result.status == SWX_MORE;) {
        size_t n = chunk && chunk < size - at ? chunk : size - at, left = n;
        uint8_t *block = malloc(n);
        MUST(block);
        memcpy(block, data + at, n);
        const uint8_t *bytes = block;
        swx_span payload;
        while ((result.status = swx_frame_take(&decoder, &bytes, &left, &payload)) == SWX_OK) {
            if ((result.status = repack(&decoder, payload, &encoder)) != SWX_OK) {
                break;
            }
            result.frames++;
            size_t more = swx_frame_encoder_total(&encoder);
            out = realloc(out, result.size + more);
            MUST(out);
            swx_frame_encoder_copy(&encoder, out + result.size);
            result.size += more;
            swx_frame_encoder_clear(&encoder);
        }
        MUST(result.status != SWX_MORE || left == 0);
        MUST(decoder.capacity <= 512 || decoder.capacity <= 2 * size);
        at += n;
        free(block);
    }
    result.position = decoder.error.position;
    result.pending = swx_frame_decoder_pending(&decoder);
    result.bytes = out;
    swx_frame_decoder_free(&decoder);
    swx_frame_encoder_free(&encoder);
    return result;
}

static void check_stream(const uint8_t *data, size_t size, const swx_frame_limits *limits, size_t chunk)
{
    swx_frame_limits roomy = { .max_depth = SWX_FRAME_DEPTH_CEILING, .max_items = limits->max_items };
    outcome whole = decode(data, size, limits, 0), cut = decode(data, size, limits, chunk);
    MUST(whole.status == cut.status && whole.position == cut.position && whole.frames == cut.frames);
    MUST(whole.status != SWX_MORE || whole.pending == cut.pending);
    MUST(whole.size == cut.size && (!whole.size || memcmp(whole.bytes, cut.bytes, whole.size) == 0));
    outcome again = decode(whole.bytes, whole.size, &roomy, chunk);
    MUST(again.status == SWX_MORE && again.frames == whole.frames && again.pending == 0);
    MUST(again.size == whole.size && (!again.size || memcmp(again.bytes, whole.bytes, whole.size) == 0));
    free(whole.bytes);
    free(cut.bytes);
    free(again.bytes);
}

/* ---- a builder that stops after a while ---- */

typedef struct {
    size_t calls;
    size_t members; /* that it may be asked for: one for each byte */
} counter;

static void *count(void *user)
{
    counter *c = user;
    return ++c->calls % 100 ? user : NULL;
}

static void *count_bool(void *user, bool value) { return (void)value, count(user); }
static void *count_int(void *user, int64_t value) { return (void)value, count(user); }
static void *count_natural(void *user, uint64_t value) { return (void)value, count(user); }
static void *count_double(void *user, double value) { return (void)value, count(user); }

static void *count_members(void *user, size_t members)
{
    counter *c = user;
    MUST(members <= c->members);
    c->members -= members;
    return count(user);
}

static void *count_array(void *user, uint32_t members) { return count_members(user, members); }
static void *count_map(void *user, uint32_t pairs) { return count_members(user, (size_t)pairs * 2); }

static void *count_bytes(void *user, const uint8_t *bytes, size_t size)
{
    counter *c = user;
    for (size_t i = 0; i < size; i++) {
        c->calls += bytes[i] & 1;
    }
    return count(user);
}

static const swx_frame_builder COUNT = {
    .nil = count, .boolean = count_bool, .integer = count_int, .natural = count_natural, .number = count_double,
    .str = count_bytes, .bin = count_bytes, .array = count_array, .array_set = set_item, .map = count_map,
    .map_set = set_pair, .map_end = end_map, .drop = drop,
};

static void check_stopping(const uint8_t *payload, size_t size, const swx_frame_limits *limits)
{
    counter c = { .members = size };
    void *value;
    swx_status status = swx_frame_build(payload, size, limits, &COUNT, &c, &value, NULL);
    swx_status scanned = swx_frame_scan(payload, size, limits, NULL);
    MUST(status == scanned || (scanned == SWX_OK && status == SWX_EINVAL));
    MUST(value == (status == SWX_OK ? &c : NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) {
        return 0;
    }
    swx_frame_limits limits = { .max_depth = 1 + data[0] % 40,
                                .max_items = data[0] & 0x40 ? 20 : 0,
                                .max_frame = data[0] & 0x80 ? 40 : 0 };
    size_t chunk = 1 + data[1] % 32;
    bool one_payload = data[2] & 1;
    data += 3;
    size -= 3;
    if (one_payload) {
        uint8_t *frame = malloc(size + 4);
        MUST(frame);
        memcpy(frame, (uint8_t[]){ 0, (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size }, 4);
        memcpy(frame + 4, data, size);
        check_stream(frame, size + 4, &limits, chunk);
        free(frame);
    } else {
        check_stream(data, size, &limits, chunk);
    }
    uint8_t *block = malloc(size ? size : 1);
    MUST(block);
    memcpy(block, data, size);
    MUST(swx_frame_limits_fill(&limits, NULL) == SWX_OK);
    limits.trust_text = chunk & 1;
    check_stopping(block, size, &limits);
    limits.max_items = UINT32_MAX;
    limits.max_depth = SWX_FRAME_DEPTH_CEILING;
    check_stopping(block, size, &limits);
    free(block);
    return 0;
}
