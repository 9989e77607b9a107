#include "swx_strip.h"

#include <string.h>

enum { ESC = 0x1b, BEL = 0x07, CAN = 0x18, SUB = 0x1a };

typedef enum {
    TEXT,         /* nothing held */
    ESCAPE,       /* ESC */
    PARAMETERS,   /* ESC [ and parameters */
    INTERMEDIATE, /* ESC [ ... and intermediates */
    CHARSET,      /* ESC and intermediates (nF) */
    OSC,          /* ESC ] ... */
    OSC_END,      /* ESC ] ... ESC */
    STRING,       /* ESC P, X, ^ or _ ... */
    STRING_END,   /* ESC P ... ESC */
    DONE,         /* this byte completes the sequence */
    BROKEN        /* this byte is no part of the sequence */
} phase;

static bool within(uint8_t c, uint8_t first, uint8_t last) { return c >= first && c <= last; }

static phase after_escape(uint8_t c)
{
    switch (c) {
    case '[':
        return PARAMETERS;
    case ']':
        return OSC;
    case 'P': case 'X': case '^': case '_':
        return STRING;
    default:
        return within(c, 0x20, 0x2f) ? CHARSET : within(c, 0x30, 0x7e) ? DONE : BROKEN;
    }
}

/* The phase after byte c in `now`, which is not TEXT. */
static phase next_phase(phase now, uint8_t c)
{
    switch (now) {
    case ESCAPE:
        return after_escape(c);
    case PARAMETERS:
        if (within(c, 0x30, 0x3f)) {
            return PARAMETERS;
        }
        /* fall through */
    case INTERMEDIATE:
        return within(c, 0x20, 0x2f) ? INTERMEDIATE : within(c, 0x40, 0x7e) ? DONE : BROKEN;
    case CHARSET:
        return within(c, 0x20, 0x2f) ? CHARSET : within(c, 0x30, 0x7e) ? DONE : BROKEN;
    case OSC:
        return c == BEL ? DONE : c == ESC ? OSC_END : c == CAN || c == SUB || c == '\n' ? BROKEN : OSC;
    case STRING:
        return c == ESC ? STRING_END : c == CAN || c == SUB ? BROKEN : STRING;
    default: /* OSC_END, STRING_END */
        return c == '\\' ? DONE : BROKEN;
    }
}

/* Where output goes.  It may be the input's own memory: never more is written than was read. */
typedef struct {
    swx_strip *strip;
    uint8_t *at;
} sink;

static void put(sink *to, const uint8_t *bytes, size_t size)
{
    memmove(to->at, bytes, size);
    to->at += size;
}

static void emit(sink *to, const uint8_t *bytes, size_t size)
{
    const uint8_t *end = bytes + size, *cr;
    if (!size) {
        return;
    }
    if (to->strip->carriage) {
        to->strip->carriage = false;
        if (*bytes != '\n') {
            /* in place, the CR's own byte was read but not written yet: there is room before `bytes` */
            *to->at++ = '\r';
        }
    }
    while (to->strip->crlf && bytes < end && (cr = memchr(bytes, '\r', (size_t)(end - bytes)))) {
        to->strip->carriage = cr + 1 == end;
        bool keep = cr + 1 < end && cr[1] != '\n';
        put(to, bytes, (size_t)(cr - bytes) + keep);
        bytes = cr + 1;
    }
    put(to, bytes, (size_t)(end - bytes));
}

static void give_back(sink *to, size_t size)
{
    emit(to, to->strip->held, size);
    to->strip->size = 0;
    to->strip->phase = TEXT;
}

static void begin(swx_strip *strip)
{
    strip->held[0] = ESC;
    strip->size = 1;
    strip->phase = ESCAPE;
}

/* Ends a sequence that turned out to be none; a final ESC begins the next one. */
static void give_up(sink *to)
{
    swx_strip *strip = to->strip;
    bool again = strip->phase == OSC_END || strip->phase == STRING_END;
    give_back(to, strip->size - again);
    if (again) {
        begin(strip);
    }
}

/* Takes one byte inside of a sequence; false: the byte is to be read again. */
static bool step(sink *to, uint8_t c)
{
    swx_strip *strip = to->strip;
    phase next = next_phase((phase)strip->phase, c);
    if (next == BROKEN) {
        give_up(to);
        return false;
    }
    if (next == DONE) {
        strip->size = 0;
        strip->phase = TEXT;
        return true;
    }
    strip->held[strip->size++] = c;
    strip->phase = (uint8_t)next;
    if (strip->size == SWX_STRIP_HELD) {
        give_up(to);
    }
    return true;
}

void swx_strip_init(swx_strip *strip, bool crlf)
{
    strip->size = 0;
    strip->phase = TEXT;
    strip->crlf = crlf;
    strip->carriage = false;
}

void swx_strip_feed(swx_strip *strip, const uint8_t *in, size_t size, uint8_t *out, size_t *out_size)
{
    sink to = { strip, out };
    const uint8_t *at = in, *end = size ? in + size : in;
    while (at < end) {
        if (strip->phase != TEXT) {
            at += step(&to, *at);
            continue;
        }
        const uint8_t *escape = memchr(at, ESC, (size_t)(end - at));
        emit(&to, at, (size_t)((escape ? escape : end) - at));
        at = end;
        if (escape) {
            begin(strip);
            at = escape + 1;
        }
    }
    *out_size = (size_t)(to.at - out);
}

void swx_strip_finish(swx_strip *strip, uint8_t *out, size_t *out_size)
{
    sink to = { strip, out };
    emit(&to, strip->held, strip->size);
    if (strip->carriage) {
        *to.at++ = '\r';
    }
    *out_size = (size_t)(to.at - out);
    swx_strip_init(strip, strip->crlf);
}

size_t swx_strip_whole(uint8_t *data, size_t size, bool crlf)
{
    swx_strip strip;
    size_t written, rest = 0;
    if (!size) {
        return 0;
    }
    swx_strip_init(&strip, crlf);
    swx_strip_feed(&strip, data, size, data, &written);
    swx_strip_finish(&strip, data + written, &rest);
    return written + rest;
}
