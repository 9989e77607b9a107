/* swx_literal.h: an Aho-Corasick automaton for patterns that are plain strings.
 *
 * A dense table, one row a node of the trie and one column a byte that occurs in the patterns, with the failure links
 * folded in: one lookup a byte.  Source: Aho and Corasick, CACM 18 (6), 1975.
 */
#ifndef SWX_LITERAL_H
#define SWX_LITERAL_H

#include "swx_match.h"
#include "swx_skip.h"

#define SWX_LITERAL_MAX_TABLE (4u << 20) /* bytes */

typedef struct swx_literal swx_literal;

/* patterns: UTF-8, none empty, count at least 1.  SWX_OK, SWX_ENOMEM, or SWX_ELIMIT when the table would be too large. */
swx_status swx_literal_new(swx_literal **out, const swx_pattern *patterns, size_t count);
void swx_literal_free(swx_literal *literal);

/* The root again; offset is where the stream now stands. */
void swx_literal_reset(swx_literal *literal, uint64_t offset);

/* As swx_match_feed. */
swx_status swx_literal_feed(swx_literal *literal, const uint8_t *bytes, size_t size, size_t *consumed, swx_hit *hit);

#endif
