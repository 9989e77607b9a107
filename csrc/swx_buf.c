#include "swx_buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 512, KEPT_CAPACITY = 64 * 1024 };

static size_t head_size(const swx_buf *buf) { return buf->limit - buf->limit / 2; }
static size_t tail_size(const swx_buf *buf) { return buf->limit / 2; }

void swx_buf_init(swx_buf *buf, size_t limit) { *buf = (swx_buf){ .limit = limit < 2 ? 2 : limit }; }

void swx_buf_free(swx_buf *buf)
{
    free(buf->data);
    swx_buf_init(buf, buf->limit);
}

void swx_buf_clear(swx_buf *buf)
{
    if (buf->capacity > KEPT_CAPACITY) {
        swx_buf_free(buf);
        return;
    }
    buf->size = buf->ring = buf->cut = 0;
    buf->total = 0;
}

static bool grow(swx_buf *buf, size_t needed)
{
    size_t capacity = buf->capacity ? buf->capacity : FIRST_CAPACITY;
    while (capacity < needed) {
        capacity = capacity > SIZE_MAX / 2 ? needed : capacity * 2;
    }
    if (capacity > buf->limit) {
        capacity = buf->limit;
    }
    uint8_t *data = realloc(buf->data, capacity);
    if (data) {
        buf->data = data;
        buf->capacity = capacity;
    }
    return data;
}

/* Writes into the tail ring, overwriting its oldest bytes; the buffer is full. */
static void overwrite(swx_buf *buf, const uint8_t *bytes, size_t size)
{
    uint8_t *tail = buf->data + head_size(buf);
    size_t room = tail_size(buf);
    if (size >= room) { /* only the last `room` bytes survive */
        bytes += size - room;
        size = room;
    }
    size_t first = room - buf->ring < size ? room - buf->ring : size;
    memcpy(tail + buf->ring, bytes, first);
    memcpy(tail, bytes + first, size - first);
    buf->ring = (buf->ring + size) % room;
}

swx_status swx_buf_append(swx_buf *buf, const void *bytes, size_t size)
{
    if (!size) {
        return SWX_OK;
    }
    size_t room = buf->limit - buf->size;
    size_t plain = size < room ? size : room;
    if (buf->size + plain > buf->capacity && !grow(buf, buf->size + plain)) {
        return SWX_ENOMEM;
    }
    memcpy(buf->data + buf->size, bytes, plain);
    buf->size += plain;
    buf->total += size;
    if (size > plain) {
        overwrite(buf, (const uint8_t *)bytes + plain, size - plain);
    }
    return SWX_OK;
}

void swx_buf_chop(swx_buf *buf, size_t size)
{
    bool full = buf->total > buf->size;
    size_t most = full ? tail_size(buf) - buf->cut : buf->size;
    size = size < most ? size : most;
    buf->size -= size;
    buf->total -= size;
    if (full) {
        buf->cut += size;
    }
}

swx_status swx_buf_narrow(swx_buf *to, const swx_buf *from, size_t limit)
{
    swx_span spans[3];
    swx_buf_init(to, limit);
    swx_buf_spans(from, spans);
    for (size_t i = 0; i < SWX_COUNT(spans); i++) {
        if (swx_buf_append(to, spans[i].bytes, spans[i].size) != SWX_OK) {
            swx_buf_free(to);
            return SWX_ENOMEM;
        }
    }
    to->total = from->total;
    return SWX_OK;
}

bool swx_buf_ends_with(const swx_buf *buf, const uint8_t *bytes, size_t size)
{
    swx_span spans[3];
    swx_buf_spans(buf, spans);
    if (size > buf->size) {
        return false;
    }
    for (size_t i = 3; i-- > 0;) {
        size_t part = spans[i].size < size ? spans[i].size : size;
        if (part && memcmp(spans[i].bytes + spans[i].size - part, bytes + size - part, part) != 0) {
            return false;
        }
        size -= part;
    }
    return true;
}

uint64_t swx_buf_dropped(const swx_buf *buf) { return buf->total - buf->size; }

void swx_buf_spans(const swx_buf *buf, swx_span spans[3])
{
    spans[0] = (swx_span){ buf->data, buf->size };
    spans[1] = spans[2] = (swx_span){ NULL, 0 };
    if (buf->total > buf->size) {
        const uint8_t *tail = buf->data + head_size(buf);
        spans[0].size = head_size(buf);
        size_t older = tail_size(buf) - buf->ring;
        size_t kept = tail_size(buf) - buf->cut;
        spans[1] = (swx_span){ tail + buf->ring, older < kept ? older : kept };
        spans[2] = (swx_span){ tail, kept - spans[1].size };
    }
}

size_t swx_buf_note(uint64_t dropped, char note[SWX_NOTE_SIZE])
{
    note[0] = 0;
    return dropped ? (size_t)snprintf(note, SWX_NOTE_SIZE, SWX_DROPPED_NOTE, (unsigned long long)dropped) : 0;
}

void swx_buf_copy(const swx_buf *buf, const char *note, uint8_t *out)
{
    swx_span spans[3];
    swx_buf_spans(buf, spans);
    for (size_t i = 0; i < SWX_COUNT(spans); i++) {
        if (i == 1) {
            out = mempcpy(out, note, strlen(note));
        }
        if (spans[i].size) {
            out = mempcpy(out, spans[i].bytes, spans[i].size);
        }
    }
}
