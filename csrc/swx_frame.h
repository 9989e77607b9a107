/* swx_frame.h: msgpack values in length-prefixed frames: frames out of a byte stream, and what a value's first bytes
 * say.
 *
 * On the wire a frame is a length and a payload, and the payload is exactly one msgpack value:
 *
 *      | length: 4 bytes, big-endian | payload: `length` bytes |
 *
 * What a payload may hold, the same for both directions: nil, bool, integers in [-2^63, 2^64), float (32 bits are read,
 * 64 are written), str, bin, array, map.  str is UTF-8, in which surrogates may stand, as Python's "surrogatepass" has
 * it.  Map keys are str, and none comes twice.  ext types, timestamps among them, and the reserved byte 0xc1 are
 * refused.  Integers and lengths need not be in their shortest form when read; they are when written.
 *
 * msgpack-c packs.  It does not read, because its unpacker makes room for whatever a header announces: here a caller
 * asks its limits before it makes anything of a value.  Memory grows with bytes that arrived, never with a length that
 * was announced.
 *
 * Nothing here is thread-safe.  Format: https://github.com/msgpack/msgpack/blob/master/spec.md
 */
#ifndef SWX_FRAME_H
#define SWX_FRAME_H

#include "swx.h"
#include "swx_buf.h"

#define SWX_FRAME_HEADER 4 /* bytes before a payload */

/* ---- values ---- */

typedef enum {
    SWX_NIL,
    SWX_BOOL,
    SWX_INT,
    SWX_UINT, /* above INT64_MAX */
    SWX_FLOAT,
    SWX_STR,
    SWX_BIN,
    SWX_ARRAY,
    SWX_MAP,
    SWX_EXT,
    SWX_RESERVED
} swx_value_kind;

typedef struct {
    swx_value_kind kind;
    size_t header;  /* bytes before the body */
    size_t body;    /* of a str or bin: bytes */
    uint32_t count; /* of an array: members; of a map: pairs, each a key and a value */
    union {
        int64_t integer; /* of a bool too */
        uint64_t natural;
        double number;
    };
} swx_value;

/* Reads the value at bytes, without its members; left is at least 1.  False: it is cut short (never an ext).  Allocates
 * nothing. */
bool swx_value_read(const uint8_t *bytes, size_t left, swx_value *value);

/* ---- frames ----
 *
 * Memory: at most twice what came of the frame that is being read, and at most the longest frame.  It is kept for the
 * next frame; what is above 512 KiB goes back when a frame comes that does not need it, and on reset. */

typedef struct {
    uint32_t max_frame; /* bytes of payload; the caller sets it, all else begins with zeros */
    uint64_t position;  /* of the frame that is being read, in the stream */
    swx_buf held;       /* what came of it in earlier chunks, its header too */
} swx_frame_stream;

/* Reads from the chunk (*bytes, *size), which it moves past what it used.
 *
 * SWX_OK: *payload is one payload, of which nothing is known but its length.  It points into the chunk when the whole
 * frame is there, else into the stream; it is valid until the next call, and no longer than the chunk.
 * SWX_MORE: the chunk is used up and no frame is complete; stream->held.size says what came of it.
 * SWX_EFORMAT (an empty frame), SWX_ELIMIT (too long), SWX_ENOMEM: err says what and where in the stream.  Only
 * swx_frame_reset is legal then. */
swx_status swx_frame_take(swx_frame_stream *stream, const uint8_t **bytes, size_t *size, swx_span *payload,
                          swx_error *err);

/* Forgets the stream, whose next byte is the first of a new one, and releases its memory. */
void swx_frame_reset(swx_frame_stream *stream);

#endif
