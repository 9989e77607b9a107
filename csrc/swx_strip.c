#include "swx_strip.h"

#include <string.h>

enum { ESC = 0x1b, BEL = 0x07, CAN = 0x18, SUB = 0x1a, C1_LEAD = 0xc2 /* of U+0080 to U+009F in UTF-8 */ };

typedef enum {
    TEXT,         /* nothing held */
    ESCAPE,       /* ESC */
    PARAMETERS,   /* ESC [ and parameters */
    INTERMEDIATE, /* ESC [ ... and intermediates */
    CHARSET,      /* ESC and intermediates (nF) */
    OSC,          /* ESC ] ... */
    STRING,       /* ESC P, X, ^ or _ ... */
    STRING_END,   /* one of the last two, and ESC */
    DONE,         /* this byte completes the sequence */
    BROKEN        /* this byte is no part of the sequence */
} phase;

static bool within(uint8_t c, uint8_t first, uint8_t last) { return c >= first && c <= last; }

static phase after_escape(uint8_t c)
{
    switch (c) {
    case '[': return PARAMETERS;
    case ']': return OSC;
    case 'P':
    case 'X':
    case '^':
    case '_': return STRING;
    default: return within(c, 0x20, 0x2f) ? CHARSET : within(c, 0x30, 0x7e) ? DONE : BROKEN;
    }
}

/* The phase after byte c in `now`, which is not TEXT. */
static phase next_phase(phase now, uint8_t c)
{
    switch (now) {
    case ESCAPE: return after_escape(c);
    case PARAMETERS:
        if (within(c, 0x30, 0x3f)) {
            return PARAMETERS;
        }
        /* fall through */
    case INTERMEDIATE: return within(c, 0x20, 0x2f) ? INTERMEDIATE : within(c, 0x40, 0x7e) ? DONE : BROKEN;
    case CHARSET: return within(c, 0x20, 0x2f) ? CHARSET : within(c, 0x30, 0x7e) ? DONE : BROKEN;
    case OSC: return c == BEL ? DONE : c == ESC ? STRING_END : c == CAN || c == SUB || c == '\n' ? BROKEN : OSC;
    case STRING: return c == ESC ? STRING_END : c == CAN || c == SUB ? BROKEN : STRING;
    default: /* STRING_END */ return c == '\\' ? DONE : BROKEN;
    }
}

/* Where output goes.  It may be the input's own memory: never more is written than was read. */
typedef struct {
    swx_strip *strip;
    uint8_t *at;
} sink;

static inline void put(sink *to, const uint8_t *bytes, size_t size)
{
    if (size) {
        memmove(to->at, bytes, size);
        to->at += size;
    }
}

/* The second byte of a C1 control, but for NEL (U+0085), which ends a line of text and begins no sequence. */
static bool is_c1(uint8_t c) { return within(c, 0x80, 0x9f) && c != 0x85; }

/* One byte behind a C2 that is held back or was written; false: it goes. */
static bool behind_lead(sink *to, uint8_t c)
{
    swx_strip *strip = to->strip;
    bool held = strip->lead;
    strip->lead = false;
    if (is_c1(c)) {
        return !strip->stray;
    }
    if (held) {
        put(to, &(const uint8_t){ C1_LEAD }, 1);
    }
    strip->stray = c == C1_LEAD && (held || strip->stray);
    return true;
}

/* Writes bytes without ESC. */
static void emit(sink *to, const uint8_t *bytes, size_t size)
{
    swx_strip *strip = to->strip;
    const uint8_t *end = bytes + size;
    while (bytes < end) {
        if ((strip->lead || strip->stray) && !behind_lead(to, *bytes)) {
            bytes++;
            continue;
        }
        const uint8_t *lead = memchr(bytes, C1_LEAD, (size_t)(end - bytes));
        put(to, bytes, (size_t)((lead ? lead : end) - bytes));
        strip->lead = lead != NULL;
        bytes = lead ? lead + 1 : end;
    }
}

static void begin(swx_strip *strip)
{
    strip->held[0] = ESC;
    strip->size = 1;
    strip->phase = ESCAPE;
}

/* Ends a sequence that turned out to be none: all but its ESC is text.  A final ESC begins the next one. */
static void give_up(sink *to)
{
    swx_strip *strip = to->strip;
    bool again = strip->phase == STRING_END;
    emit(to, strip->held + 1, strip->size - 1 - again);
    strip->size = 0;
    strip->phase = TEXT;
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

bool swx_strip_needed(const uint8_t *bytes, size_t size)
{
    const uint8_t *at = bytes, *end = size ? bytes + size : bytes;
    if (size && memchr(bytes, ESC, size)) {
        return true;
    }
    while (at < end && (at = memchr(at, C1_LEAD, (size_t)(end - at)))) {
        if (++at < end && is_c1(*at)) {
            return true;
        }
    }
    return false;
}

void swx_strip_init(swx_strip *strip)
{
    strip->size = 0;
    strip->phase = TEXT;
    strip->lead = strip->stray = false;
}

size_t swx_strip_feed(swx_strip *strip, const uint8_t *in, size_t size, uint8_t *out)
{
    sink to = { strip, out };
    const uint8_t *at = in, *end = size ? in + size : in;
    bool c1 = size && memchr(in, C1_LEAD, size); /* asked once, for text between sequences is short */
    while (at < end) {
        if (strip->phase != TEXT) {
            at += step(&to, *at);
            continue;
        }
        const uint8_t *escape = memchr(at, ESC, (size_t)(end - at));
        size_t text = (size_t)((escape ? escape : end) - at);
        if (c1 || strip->lead || strip->stray) {
            emit(&to, at, text);
        } else {
            put(&to, at, text);
        }
        at = end;
        if (escape) {
            begin(strip);
            at = escape + 1;
        }
    }
    return (size_t)(to.at - out);
}

size_t swx_strip_finish(swx_strip *strip, uint8_t *out)
{
    sink to = { strip, out };
    while (strip->phase != TEXT) {
        give_up(&to);
    }
    if (strip->lead) {
        put(&to, &(const uint8_t){ C1_LEAD }, 1);
    }
    swx_strip_init(strip);
    return (size_t)(to.at - out);
}

/* Each CR LF becomes LF. */
static size_t join_lines(uint8_t *data, size_t size)
{
    sink to = { .at = data };
    const uint8_t *at = data, *end = data + size, *cr;
    while (at < end && (cr = memchr(at, '\r', (size_t)(end - at)))) {
        bool keep = cr + 1 == end || cr[1] != '\n';
        put(&to, at, (size_t)(cr - at) + keep);
        at = cr + 1;
    }
    put(&to, at, (size_t)(end - at));
    return (size_t)(to.at - data);
}

size_t swx_strip_whole(uint8_t *data, size_t size, bool crlf)
{
    swx_strip strip;
    if (!size) {
        return 0;
    }
    swx_strip_init(&strip);
    size = swx_strip_feed(&strip, data, size, data);
    size += swx_strip_finish(&strip, data + size);
    return crlf ? join_lines(data, size) : size;
}
