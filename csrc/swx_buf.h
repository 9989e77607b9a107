/* swx_buf.h: a growable byte buffer with a limit.
 *
 * Below the limit it holds all that was appended.  Past it, it keeps the head (the first half of the limit)
 * and the tail (the last half) and counts what was dropped between them:
 *
 *      | head ........... | <dropped bytes> | ........... tail |
 *        limit - limit/2                         limit/2
 *
 * The tail is a ring inside the same block, so memory never exceeds `limit` bytes (plus growth slack below it)
 * and each byte is copied at most twice (amortised doubling, then the final read).
 * Not thread-safe; the owner locks.
 */
#ifndef SWX_BUF_H
#define SWX_BUF_H

#include "swx.h"

/* Stands for dropped bytes in a text; the argument is their number, an unsigned long long. */
#define SWX_DROPPED_NOTE "\n[... %llu bytes of output were dropped here ...]\n"
#define SWX_NOTE_SIZE (sizeof(SWX_DROPPED_NOTE) + 20)

typedef struct {
    uint8_t *data;
    size_t size;     /* bytes held, at most limit */
    size_t capacity; /* bytes allocated */
    size_t limit;    /* the most that is ever held, at least 2 */
    size_t ring;     /* start of the oldest tail byte, an offset from the head's end; 0 while nothing was dropped */
    size_t cut;      /* bytes chopped off a full buffer's tail */
    uint64_t total;  /* bytes ever appended since the last clear, less what was chopped */
} swx_buf;

/* An empty buffer; allocates nothing.  limit: bytes, at least 2. */
void swx_buf_init(swx_buf *buf, size_t limit);

/* Releases the memory; the buffer is empty and may be used again with the same limit. */
void swx_buf_free(swx_buf *buf);

/* Forgets the contents; keeps up to 64 KiB of memory for the next use. */
void swx_buf_clear(swx_buf *buf);

/* Appends bytes.  SWX_OK or SWX_ENOMEM (then nothing was appended). */
swx_status swx_buf_append(swx_buf *buf, const void *bytes, size_t size);

/* Removes the last `size` bytes; where bytes were dropped, the whole tail if that is smaller, and after that the buffer
 * may be read and cleared, but not appended to.  The memory is kept. */
void swx_buf_chop(swx_buf *buf, size_t size);

/* Copies a buffer to *to with a smaller limit, below the size that it holds.  SWX_OK, or SWX_ENOMEM (then there is
 * nothing to free). */
swx_status swx_buf_narrow(swx_buf *to, const swx_buf *from, size_t limit);

/* Whether the contents end with these bytes. */
bool swx_buf_ends_with(const swx_buf *buf, const uint8_t *bytes, size_t size);

/* Bytes appended but no longer held. */
uint64_t swx_buf_dropped(const swx_buf *buf);

/* The contents as up to three spans in order: the head, then the (possibly wrapped) tail.  Unused spans have
 * size 0.  While nothing was dropped, spans[0] is everything.  Valid until the next change. */
typedef struct {
    const uint8_t *bytes;
    size_t size;
} swx_span;
void swx_buf_spans(const swx_buf *buf, swx_span spans[3]);

/* Writes SWX_DROPPED_NOTE for this number of bytes, or "" for none.  Returns the size. */
size_t swx_buf_note(uint64_t dropped, char note[SWX_NOTE_SIZE]);

/* Copies everything held into out, with `note` where bytes were dropped; out has room for both. */
void swx_buf_copy(const swx_buf *buf, const char *note, uint8_t *out);

#endif
