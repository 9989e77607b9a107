/* Frames of msgpack, read. */
#include "swx_frame.h"

#include <string.h>

enum { KEPT_CAPACITY = 512 * 1024 };

static uint64_t big_endian(const uint8_t *p, size_t width)
{
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++) {
        value = value << 8 | p[i];
    }
    return value;
}

/* ---- values ---- */

typedef struct {
    uint8_t kind;  /* swx_value_kind */
    uint8_t width; /* bytes of the number, length or count that follows the first byte */
} format;

/* First bytes 0xc0 to 0xdf. */
static const format FORMATS[32] = {
    { SWX_NIL, 0 },   { SWX_RESERVED, 0 }, { SWX_BOOL, 0 }, { SWX_BOOL, 0 }, { SWX_BIN, 1 },  { SWX_BIN, 2 },
    { SWX_BIN, 4 },   { SWX_EXT, 0 },      { SWX_EXT, 0 },  { SWX_EXT, 0 }, /* refused, whatever its length is */
    { SWX_FLOAT, 4 }, { SWX_FLOAT, 8 },    { SWX_UINT, 1 }, { SWX_UINT, 2 }, { SWX_UINT, 4 }, { SWX_UINT, 8 },
    { SWX_INT, 1 },   { SWX_INT, 2 },      { SWX_INT, 4 },  { SWX_INT, 8 },  { SWX_EXT, 0 },  { SWX_EXT, 0 },
    { SWX_EXT, 0 },   { SWX_EXT, 0 },      { SWX_EXT, 0 },  { SWX_STR, 1 },  { SWX_STR, 2 },  { SWX_STR, 4 },
    { SWX_ARRAY, 2 }, { SWX_ARRAY, 4 },    { SWX_MAP, 2 },  { SWX_MAP, 4 },
};

static double number_of(uint64_t bits, size_t width)
{
    double number;
    float half;
    uint32_t half_bits = (uint32_t)bits;
    memcpy(&number, &bits, sizeof(number));
    memcpy(&half, &half_bits, sizeof(half));
    return width == sizeof(half) ? (double)half : number;
}

static int64_t integer_of(uint64_t bits, size_t width)
{
    size_t above = 64 - 8 * width;
    return (int64_t)(bits << above) >> above; /* with the sign */
}

/* Reads a value whose first byte holds its number, length or count. */
static bool read_short(uint8_t first, size_t left, swx_value *value)
{
    if (first < 0x80 || first >= 0xe0) {
        value->kind = SWX_INT;
        value->integer = (int8_t)first;
    } else if (first < 0xa0) {
        value->kind = first < 0x90 ? SWX_MAP : SWX_ARRAY;
        value->count = first & 0x0f;
    } else {
        value->kind = SWX_STR;
        value->body = first & 0x1f;
    }
    return value->body < left;
}

bool swx_value_read(const uint8_t *bytes, size_t left, swx_value *value)
{
    uint8_t first = bytes[0];
    *value = (swx_value){ .header = 1 };
    if (first < 0xc0 || first >= 0xe0) {
        return read_short(first, left, value);
    }
    const format *f = &FORMATS[first - 0xc0];
    value->kind = (swx_value_kind)f->kind;
    value->header += f->width;
    if (left < value->header) {
        return false;
    }
    uint64_t bits = big_endian(bytes + 1, f->width);
    switch (value->kind) {
    case SWX_BOOL: value->integer = first & 1; break;
    case SWX_INT: value->integer = integer_of(bits, f->width); break;
    case SWX_UINT:
        value->kind = bits > INT64_MAX ? SWX_UINT : SWX_INT;
        value->natural = bits;
        break;
    case SWX_FLOAT: value->number = number_of(bits, f->width); break;
    case SWX_STR:
    case SWX_BIN: value->body = (size_t)bits; break;
    case SWX_ARRAY:
    case SWX_MAP: value->count = (uint32_t)bits; break;
    default: break;
    }
    return left - value->header >= value->body;
}

/* ---- frames ---- */

void swx_frame_reset(swx_frame_stream *stream)
{
    swx_buf_free(&stream->held);
    *stream = (swx_frame_stream){ .max_frame = stream->max_frame };
}

static swx_status fail(const swx_frame_stream *stream, swx_error *err, swx_status status, const char *text)
{
    swx_fail(err, status, text);
    err->position = (size_t)stream->position;
    return status;
}

/* Whether there are a header and more; *length is what it announces. */
static bool has_header(const uint8_t *bytes, size_t size, size_t *length)
{
    *length = size < SWX_FRAME_HEADER ? 0 : (size_t)big_endian(bytes, SWX_FRAME_HEADER);
    return size >= SWX_FRAME_HEADER;
}

/* Moves bytes from the chunk to those of the frame, up to `wanted` of it. */
static bool collect(swx_frame_stream *stream, const uint8_t **bytes, size_t *size, size_t wanted)
{
    size_t missing = wanted - stream->held.size, n = *size < missing ? *size : missing;
    stream->held.limit = wanted;
    if (swx_buf_append(&stream->held, *bytes, n) != SWX_OK) {
        return false;
    }
    *bytes += n;
    *size -= n;
    return true;
}

static swx_status take_from_chunk(swx_frame_stream *stream, const uint8_t **bytes, size_t *size, swx_span *payload)
{
    size_t length;
    bool known = has_header(*bytes, *size, &length);
    if (stream->held.capacity > KEPT_CAPACITY && known && length <= KEPT_CAPACITY) {
        swx_buf_free(&stream->held); /* large frames come in rows, and fresh pages cost more than the copy */
    }
    if (!length || length > stream->max_frame || length > *size - SWX_FRAME_HEADER) {
        return SWX_MORE;
    }
    *payload = (swx_span){ *bytes + SWX_FRAME_HEADER, length };
    *bytes += SWX_FRAME_HEADER + length;
    *size -= SWX_FRAME_HEADER + length;
    stream->position += SWX_FRAME_HEADER + length;
    return SWX_OK;
}

swx_status swx_frame_take(swx_frame_stream *stream, const uint8_t **bytes, size_t *size, swx_span *payload,
                          swx_error *err)
{
    *payload = (swx_span){ NULL, 0 };
    if (!stream->held.size && take_from_chunk(stream, bytes, size, payload) == SWX_OK) {
        return SWX_OK;
    }
    for (;;) {
        size_t length, wanted = SWX_FRAME_HEADER;
        if (has_header(stream->held.data, stream->held.size, &length)) {
            if (!length || length > stream->max_frame) {
                return length ? fail(stream, err, SWX_ELIMIT, "the frame is longer than max_frame")
                              : fail(stream, err, SWX_EFORMAT, "the frame is empty");
            }
            wanted += length;
        }
        if (stream->held.size == wanted) {
            *payload = (swx_span){ stream->held.data + SWX_FRAME_HEADER, length };
            stream->position += wanted;
            swx_buf_chop(&stream->held, wanted);
            return SWX_OK;
        }
        if (!*size) {
            return SWX_MORE;
        }
        if (!collect(stream, bytes, size, wanted)) {
            return fail(stream, err, SWX_ENOMEM, "out of memory");
        }
    }
}
