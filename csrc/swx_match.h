/* swx_match.h: which of several patterns completes first in a byte stream.
 *
 * The patterns come as a program, the NFA that swerex_c/engine/patterns.py makes of Python's regular expressions.  The
 * stream is read as Python's bytes.decode("utf-8", "surrogateescape") would read it: well-formed sequences are
 * characters, and every byte that belongs to none is a character of its own (U+DC80..U+DCFF), which `.` and negated
 * classes match.
 *
 * Semantics: characters arrive one at a time, and after each the text is what has arrived so far.
 *     The match that completes first wins; among those the one that starts first; then the order of the list.
 * So greedy and lazy mean the same, and the answer never depends on how the stream was cut into chunks.
 *   ^ \A      the place where the stream began, which is the last reset or the end of the last hit
 *   $ \Z \b   the end of what has arrived counts as the end of the text: `foo$`, `foo\Z`, `foo\b` are hits with foo's
 *             last byte, whatever follows.  In the middle of a pattern \b \B look at both neighbours.
 *   (?m)      ^ also after, $ also before a newline
 *
 *      bytes --(no match begins so)--> letters --lazy DFA--> hit
 *
 * A state of the DFA is what is alive in the NFA, grouped by where it began, oldest first:
 *
 *      registers   [0] = 17     [1] = 40
 *      state        {5, 9}       {3}          + {starts of all patterns}, which begin here and are implied
 *
 * An NFA state stays in its oldest group only, so a hit taken from the first group that has one is the one that starts
 * first.  A transition says which old group becomes which new one; where nothing moves it is a plain table entry, and
 * the loop over such entries is all that happens for most bytes.  So each byte is read once, and none is kept.
 *
 * States are made when first needed and kept in a bounded cache.  When it is full it is emptied, and the search goes on
 * from the state at hand: time stays linear in the bytes, at worst with the size of the NFA as the factor.  Making
 * states is work, counted in states of the NFA that are looked at; a stream that needs too much of it ends with
 * SWX_ELIMIT.
 *
 * Not thread-safe; one matcher serves one stream at a time.
 */
#ifndef SWX_MATCH_H
#define SWX_MATCH_H

#include "swx.h"

#define SWX_MATCH_MAX_STATES 16384u
#define SWX_MATCH_MAX_LETTERS 4096u
#define SWX_MATCH_CACHE (4u << 20) /* bytes; one state more may be over it */

/* How much work a stream may need, at 20 ns each: to make the states of a large list of patterns, and for each byte.
 * Both together keep the reactor's thread, in which all sessions are read, a third of a second at most before it looks
 * at the others. */
#define SWX_MATCH_WORK 4000000u
#define SWX_MATCH_WORK_PER_BYTE 40u

/* A program is an array of 32-bit words: these counts, then the parts, in this order.
 *
 *      states    kind, value, out       each; the states of a pattern stand together, those of the first pattern first
 *      starts    state                  per pattern
 *      bounds    code point             the first is 0; a letter is the characters of some ranges
 *      letters   letter                 per bound, of the characters from there to the next bound
 *      sets      letters, a bit each    number 0 is the newline, number 1 the surrogates (bytes that are not UTF-8)
 *      first     256 bits               the bytes that a match may begin with
 */
typedef struct {
    uint32_t states, patterns, bounds, letters, sets;
    uint32_t word, ascii_word; /* set + 1 of \w, where a boundary needs it */
} swx_match_counts;

typedef enum {
    SWX_READ,   /* value: set of letters; goes to out with one of them */
    SWX_SPLIT,  /* goes to out and to value, on nothing */
    SWX_ASSERT, /* value: swx_assertion; goes to out, on nothing, where it holds */
    SWX_MATCH   /* value: the pattern */
} swx_nfa_kind;

typedef enum {
    SWX_AT_BEGIN,      /* ^ or \A */
    SWX_AT_LINE_BEGIN, /* ^ under (?m) */
    SWX_AT_END,        /* \Z */
    SWX_AT_LAST_LINE,  /* $ */
    SWX_AT_LINE_END,   /* $ under (?m) */
    SWX_AT_BOUNDARY,   /* \b, Unicode words */
    SWX_AT_NO_BOUNDARY,
    SWX_AT_ASCII_BOUNDARY, /* \b under (?a) */
    SWX_AT_ASCII_NO_BOUNDARY
} swx_assertion;

typedef struct {
    size_t index;        /* of the pattern */
    uint64_t start, end; /* offsets in the stream since the last reset; end is exclusive */
} swx_hit;

typedef struct swx_match swx_match;

/* Copies a program of `count` words.  SWX_EINVAL: it is none; SWX_ENOMEM. */
swx_status swx_match_new(swx_match **out, const uint32_t *program, size_t count);

/* Limits the cache to so many bytes, for tests. */
void swx_match_limit_cache(swx_match *match, size_t bytes);

/* A new stream: offset 0, nothing read, errors forgotten. */
void swx_match_reset(swx_match *match);

/* Reads bytes until a hit.
 * SWX_MORE: no hit yet, all were read (*consumed == size).
 * SWX_OK: *hit is filled.  The search starts anew at hit->end; feed it the bytes from `*consumed` on.  That is where
 *     hit->end lies, except that a hit inside a broken UTF-8 sequence is known one byte later than its last byte: then
 *     up to 3 bytes after hit->end are read already and remembered, and hit->end may lie before this chunk.
 * SWX_ENOMEM, SWX_ELIMIT (the patterns take too long on this text): sticky until reset. */
swx_status swx_match_feed(swx_match *match, const uint8_t *bytes, size_t size, size_t *consumed, swx_hit *hit);

/* NULL is legal. */
void swx_match_free(swx_match *match);

#endif
