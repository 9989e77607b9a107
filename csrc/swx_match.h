/* swx_match.h: which of several patterns completes first in a byte stream.
 *
 * Patterns are Python `re` expressions (the text of a str, as UTF-8, flags DOTALL).  The stream is read as Python's
 * bytes.decode("utf-8", "surrogateescape") would read it: well-formed sequences are characters, and every byte that
 * belongs to none is a character of its own (U+DC80..U+DCFF), which `.`, negated classes, \D, \W and \S match.
 *
 * Semantics: characters arrive one at a time, and after each the text is what has arrived so far.
 *     The match that completes first wins; among those the one that starts first; then the order of the list.
 * So greedy and lazy mean the same, and the answer never depends on how the stream was cut into chunks.
 *   ^ \A      the place where the stream began, which is the last reset or the end of the last hit
 *   $ \Z \b   the end of what has arrived counts as the end of the text: `foo$`, `foo\Z`, `foo\b` are hits with foo's
 *             last byte, whatever follows.  In the middle of a pattern \b \B look at both neighbours.
 *   (?m)      ^ also after, $ also before a newline
 *
 *      patterns --parse--> syntax tree --all literal?--> Aho-Corasick table            swx_regex, swx_literal
 *                               `------------------> NFA --> lazy DFA over characters  swx_nfa, swx_alphabet, swx_dfa
 *      bytes --swx_skip (no match can start here)--> one of the two --> hit
 *
 * Each byte is read once, memory is bounded, and no byte of the stream is kept: the start of a hit comes from registers
 * that the automaton moves along.  Unsupported because not regular: back-references, look-around, conditionals, atomic
 * groups, possessive repeats; because not exact here: \N{...}, lone surrogates, (?i) with non-ASCII characters (unless
 * (?a)), \d \w \b without tables (unless (?a)), \b or \B at a pattern's end where the character before it does not
 * decide, `$` without (?m) before something that can match a newline.
 *
 * Not thread-safe; one matcher serves one stream at a time.
 */
#ifndef SWX_MATCH_H
#define SWX_MATCH_H

#include "swx.h"

#define SWX_MATCH_MAX_PATTERNS 4096
#define SWX_MATCH_MAX_BYTES (256u << 10) /* of all patterns together */

typedef struct {
    const uint8_t *bytes; /* UTF-8, need not outlive swx_match_new */
    size_t size;
} swx_pattern;

/* Inclusive range of code points. */
typedef struct {
    uint32_t low, high;
} swx_range;

/* Which characters beyond ASCII are \d and \w: sorted, disjoint, of all code points (ASCII included).  They come from
 * the caller because they belong to a version of Unicode, which is the version of its `re`. */
typedef struct {
    const swx_range *digit, *word;
    size_t digits, words; /* counts */
} swx_match_tables;

typedef struct {
    size_t index;        /* of the pattern */
    uint64_t start, end; /* offsets in the stream since the last reset; end is exclusive */
} swx_hit;

typedef struct swx_match swx_match;

/* Compiles.  tables may be NULL and need not outlive the call.  bad_index may be NULL; on failure it names the pattern.
 * SWX_EINVAL: not a valid expression (err->text, err->position: byte offset in the pattern);
 * SWX_EUNSUPPORTED: valid or undecided, but outside of what is handled here; SWX_ELIMIT: too large; SWX_ENOMEM. */
swx_status swx_match_new(swx_match **out, const swx_pattern *patterns, size_t count, const swx_match_tables *tables,
                         size_t *bad_index, swx_error *err);

/* Whether pattern number `index` matches the empty text; such a pattern hits at once, before any byte. */
bool swx_match_matches_empty(const swx_match *match, size_t index);

/* The number of patterns. */
size_t swx_match_count(const swx_match *match);

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
