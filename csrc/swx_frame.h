/* swx_frame.h: msgpack values in length-prefixed frames, over msgpack-c.
 *
 * On the wire a frame is a length and a payload, and the payload is exactly one msgpack value:
 *
 *      | length: 4 bytes, big-endian | payload: `length` bytes |
 *
 * What a payload may hold, the same for both directions (the encoder cannot make a frame the decoder refuses):
 * nil, bool, integers in [-2^63, 2^64), float (32 bits are read, 64 are written), str, bin, array, map.  str is
 * valid UTF-8 (no surrogates, no overlong forms).  Map keys are str; whether a key may come twice is up to the
 * builder.  ext types, timestamps among them, and the reserved byte 0xc1 are refused.  Integers and lengths need
 * not be in their shortest form when read; they are when written.
 *
 * msgpack-c packs, by its public functions, straight into the encoder.  The builder reads by itself, straight into the
 * caller's objects, because msgpack-c's unpacker makes room for whatever a header announces: here the limits are asked
 * before a builder is asked for anything, so that no container is made that is too deep, that has too many items, or
 * that has more members than there are bytes to hold them.  What is refused is walked by swx_frame_scan, which alone
 * says what is wrong, and where.  Memory held here comes from swx_alloc and grows with bytes that arrived, never with a
 * length that was announced.
 *
 * Nothing here is thread-safe; one thread at a time uses a decoder or an encoder.
 * Format: https://github.com/msgpack/msgpack/blob/master/spec.md
 */
#ifndef SWX_FRAME_H
#define SWX_FRAME_H

#include "swx.h"
#include "swx_buf.h" /* swx_span */

#define SWX_FRAME_HEADER 4                             /* bytes before a payload */
#define SWX_FRAME_MAX_FRAME (64u * 1024 * 1024)        /* default for max_frame */
#define SWX_FRAME_MAX_DEPTH 32u                        /* default for max_depth */
#define SWX_FRAME_MAX_ITEMS 1000000u                   /* default for max_items */
#define SWX_FRAME_DEPTH_CEILING 128u                   /* the most that max_depth can be */

/* A field of 0 means its default. */
typedef struct {
    uint32_t max_frame; /* bytes of payload */
    uint32_t max_depth; /* arrays and maps inside each other; 1 allows [1] but not [[1]] */
    uint32_t max_items; /* values in a frame: the outermost, each member, each key, each container */
    bool trust_text;    /* str is not looked at: a builder checks that it is UTF-8, or a packer's caller knows it */
} swx_frame_limits;

/* Puts the defaults in.  SWX_OK, or SWX_EINVAL when max_depth is above the ceiling (limits unchanged). */
swx_status swx_frame_limits_fill(swx_frame_limits *limits, swx_error *err);

/* The open containers of a value while it is read or written.  Private. */
typedef struct {
    uint64_t left;     /* members still to come of the innermost; 1 before the outermost value, 0 after it */
    uint64_t promised; /* values announced so far, the outermost included */
    uint32_t depth;
    bool map;          /* the innermost is one: two members a pair, so a key is next when `left` is even */
    struct {
        uint64_t left;
        bool map;
    } around[SWX_FRAME_DEPTH_CEILING]; /* those around the innermost, outermost first */
} swx_frame_shape;

/* ---- scan and build: one payload ---- */

/* Checks a whole payload against the rules above and the limits (filled).  Reads each byte at most twice,
 * allocates nothing, does not recurse.
 * SWX_OK, SWX_EFORMAT (not one well-formed value), SWX_ELIMIT (too deep, too many items) or SWX_EUNSUPPORTED
 * (ext).  err->position: where the value at fault starts, or its first bad byte when UTF-8 is at fault. */
swx_status swx_frame_scan(const uint8_t *payload, size_t size, const swx_frame_limits *limits, swx_error *err);

/* Makes values in the order of their bytes, depth first.  A value is any pointer but NULL; NULL (or false) stops
 * the build, and everything made until then is dropped.  Bytes handed in point into the payload: a builder that
 * keeps the pointer instead of a copy has a zero-copy bin.  array and map make an empty container that array_set
 * (in order, index from 0) and map_set fill; both take what they are given, also when they return false.  A map is
 * shown to map_end when it is full, an empty one too; it is dropped when that returns false. */
typedef struct {
    void *(*nil)(void *user);
    void *(*boolean)(void *user, bool value);
    void *(*integer)(void *user, int64_t value);
    void *(*natural)(void *user, uint64_t value); /* only values above INT64_MAX */
    void *(*number)(void *user, double value);
    void *(*str)(void *user, const uint8_t *bytes, size_t size);
    void *(*bin)(void *user, const uint8_t *bytes, size_t size);
    void *(*array)(void *user, uint32_t count);
    bool (*array_set)(void *user, void *array, uint32_t index, void *value);
    void *(*map)(void *user, uint32_t count);
    bool (*map_set)(void *user, void *map, uint32_t index, void *key, void *value);
    bool (*map_end)(void *user, void *map, uint32_t count);
    void (*drop)(void *user, void *value); /* a value, with the members it has */
} swx_frame_builder;

/* Runs a builder over one payload, which nobody changes meanwhile, by the rules above and the limits (filled); reads
 * it once.  *value gets the outermost value, or NULL.
 * SWX_OK; what swx_frame_scan has to say about the payload, in err (may be NULL) too; or SWX_EINVAL, when nothing is
 * wrong with it and the builder stopped.  The builder may have been asked for values before the fault; they were
 * dropped. */
swx_status swx_frame_build(const uint8_t *payload, size_t size, const swx_frame_limits *limits,
                           const swx_frame_builder *builder, void *user, void **value, swx_error *err);

/* Looks for one whole frame and nothing else in these bytes; *payload is its payload, in them.  Allocates nothing.
 * SWX_OK, SWX_EFORMAT (cut short, empty, more after it) or SWX_ELIMIT (too long); err->position counts from the
 * frame's first byte. */
swx_status swx_frame_open(const uint8_t *frame, size_t size, const swx_frame_limits *limits, swx_span *payload,
                          swx_error *err);

/* ---- decoder: frames out of a byte stream ----
 *
 * Memory: at most twice what came of the frame that is being read, and at most max_frame.  It is kept for the next
 * frame; what is above 512 KiB goes back when a frame comes that does not need it, and on reset. */

typedef struct {
    swx_frame_limits limits;
    swx_error error;    /* what stopped it; error.position counts from the stream's first byte */
    uint64_t position;  /* of the frame that is being read, in the stream */
    uint8_t header[SWX_FRAME_HEADER];
    size_t header_size; /* bytes of the header that came */
    size_t length;      /* of the payload, once the header is complete */
    uint8_t *data;      /* the part of a payload that came in earlier chunks */
    size_t size;
    size_t capacity;
    bool delivered;     /* the frame in data was handed out */
    bool copies;        /* for the caller to set: payloads never point into a chunk, because others may change it */
} swx_frame_decoder;

/* limits NULL: the defaults.  Allocates nothing.  SWX_OK or SWX_EINVAL, as swx_frame_limits_fill. */
swx_status swx_frame_decoder_init(swx_frame_decoder *decoder, const swx_frame_limits *limits, swx_error *err);

/* Releases the memory; legal on a decoder whose init failed and on one that is all zeros. */
void swx_frame_decoder_free(swx_frame_decoder *decoder);

/* Forgets the stream and its error; the next byte is the first of a new stream.  Spans are no longer valid. */
void swx_frame_decoder_reset(swx_frame_decoder *decoder);

/* Reads from the chunk (*bytes, *size), which it moves past what it used.
 *
 * SWX_OK: *payload is one payload, of which nothing is known but its length.  It points into the chunk when the whole
 * payload is there, else into the decoder; it is valid until the next call for this decoder, and no longer than the
 * chunk.
 * SWX_MORE: the chunk is used up and no frame is complete.
 * Otherwise: SWX_EFORMAT (an empty frame), SWX_ELIMIT (too long), SWX_ENOMEM, or the error of
 * swx_frame_stop, now and on every later call until reset; decoder->error says what and where.  Call it until it does not return SWX_OK. */
swx_status swx_frame_take(swx_frame_decoder *decoder, const uint8_t **bytes, size_t *size, swx_span *payload);

/* Stops the decoder: the payload that it has just handed out is not what it should be, says err, whose position counts
 * from the payload's first byte. */
void swx_frame_stop(swx_frame_decoder *decoder, swx_span payload, const swx_error *err);

/* Bytes of an unfinished frame that came so far (its header counts); 0 between frames.  At the end of a stream
 * anything but 0 means that it was cut. */
size_t swx_frame_decoder_pending(const swx_frame_decoder *decoder);

/* ---- encoder: frames into a growing output ----
 *
 *     swx_frame_begin(e);
 *     swx_frame_pack_map(e, 2);
 *     swx_frame_pack_str(e, "id", 2);    swx_frame_pack_uint(e, id);
 *     swx_frame_pack_str(e, "chunk", 5); swx_frame_pack_bin_ref(e, chunk, size);
 *     if (swx_frame_end(e) != SWX_OK) { ... e->error ...; swx_frame_cancel(e); }
 *     writev the spans; swx_frame_encoder_clear(e);
 *
 * An error sticks to the open frame: later packs and swx_frame_end return it too, so that only the end need be
 * checked, and swx_frame_cancel takes the frame back.  Finished frames before it stay.  */

/* Bytes of the caller, sent after the first `offset` bytes of the encoder's own. */
typedef struct {
    size_t offset;
    const uint8_t *bytes;
    size_t size;
} swx_frame_ref;

typedef struct {
    swx_frame_limits limits;
    swx_error error; /* of the open frame; error.position counts from the payload's first byte */
    uint8_t *data;   /* everything but what is referred to */
    size_t size;
    size_t capacity;
    swx_frame_ref *refs;
    size_t ref_count;
    size_t ref_capacity;
    size_t start;      /* of the open frame, in data */
    size_t start_refs; /* refs before it */
    size_t referred;   /* bytes of the open frame that are referred to */
    size_t room;       /* how far data may fill up before capacity or max_frame have to be looked at */
    bool open;
    swx_frame_shape shape;
} swx_frame_encoder;

/* limits NULL: the defaults.  Allocates nothing.  SWX_OK or SWX_EINVAL, as swx_frame_limits_fill. */
swx_status swx_frame_encoder_init(swx_frame_encoder *encoder, const swx_frame_limits *limits, swx_error *err);

/* Releases the memory; legal on an encoder whose init failed and on one that is all zeros. */
void swx_frame_encoder_free(swx_frame_encoder *encoder);

/* Starts a frame.  SWX_OK, SWX_EBUSY (one is open) or SWX_ENOMEM (then none is open). */
swx_status swx_frame_begin(swx_frame_encoder *encoder);

/* Each appends one value to the open frame.
 * SWX_OK; SWX_ENOMEM; SWX_ELIMIT (a limit would be passed; nothing beyond it is stored); SWX_EINVAL (no open frame,
 * the frame's value is already complete, a map key that is not a str, a str that is not UTF-8). */
swx_status swx_frame_pack_nil(swx_frame_encoder *encoder);
swx_status swx_frame_pack_bool(swx_frame_encoder *encoder, bool value);
swx_status swx_frame_pack_int(swx_frame_encoder *encoder, int64_t value);
swx_status swx_frame_pack_uint(swx_frame_encoder *encoder, uint64_t value);
swx_status swx_frame_pack_double(swx_frame_encoder *encoder, double value);
swx_status swx_frame_pack_str(swx_frame_encoder *encoder, const void *bytes, size_t size);
swx_status swx_frame_pack_bin(swx_frame_encoder *encoder, const void *bytes, size_t size);

/* The same without a copy: the bytes stay where they are, unchanged, until the output is sent or cleared. */
swx_status swx_frame_pack_str_ref(swx_frame_encoder *encoder, const void *bytes, size_t size);
swx_status swx_frame_pack_bin_ref(swx_frame_encoder *encoder, const void *bytes, size_t size);

/* The next `count` values (pairs of key and value for a map) are its members. */
swx_status swx_frame_pack_array(swx_frame_encoder *encoder, size_t count);
swx_status swx_frame_pack_map(swx_frame_encoder *encoder, size_t count);

/* Finishes the frame.  SWX_OK, the frame's error, or SWX_EINVAL (no open frame; its value is not complete). */
swx_status swx_frame_end(swx_frame_encoder *encoder);

/* Takes the open frame back, with its error; finished frames stay.  Legal when none is open. */
void swx_frame_cancel(swx_frame_encoder *encoder);

/* The finished frames: bytes in all, and piece number `index`.  A span of size 0 is past the end or empty; there
 * are 2 * ref_count + 1 pieces.  Call them while no frame is open. */
size_t swx_frame_encoder_total(const swx_frame_encoder *encoder);
swx_span swx_frame_encoder_piece(const swx_frame_encoder *encoder, size_t index);

/* Copies the finished frames into out, which has room for swx_frame_encoder_total bytes. */
void swx_frame_encoder_copy(const swx_frame_encoder *encoder, uint8_t *out);

/* Forgets everything; keeps up to 512 KiB of memory for the next frames. */
void swx_frame_encoder_clear(swx_frame_encoder *encoder);

/* Copies bytes to out, where they fit, and returns whether all of them are ASCII.  If not, only some were copied. */
bool swx_frame_copy_ascii(uint8_t *out, const uint8_t *bytes, size_t size);

/* Version of msgpack-c, whose headers have all that is used of it, such as "4.0.0". */
const char *swx_frame_msgpack_version(void);

#endif
