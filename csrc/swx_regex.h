/* swx_regex.h: the parser of Python's `re` syntax, as of 3.11: pattern text to a syntax tree.
 *
 * One swx_regex holds the trees of a whole list of patterns, in arrays that refer to each other by index.  The grammar
 * is that of the `re` documentation and of CPython's behaviour; captures are recognised and not kept.
 */
#ifndef SWX_REGEX_H
#define SWX_REGEX_H

#include "swx_charset.h"

#define SWX_REGEX_MAX_DEPTH 200 /* nested groups */
#define SWX_REGEX_MAX_CLASSES 4096 /* that differ */
#define SWX_REGEX_MAX_RANGES (128u << 10) /* of all classes that differ; \w alone has 770 */

typedef enum {
    SWX_NODE_EMPTY,
    SWX_NODE_CHAR,   /* value: code point */
    SWX_NODE_CLASS,  /* value: index into classes */
    SWX_NODE_ASSERT, /* value: swx_assertion */
    SWX_NODE_CAT,    /* child: its LAST element; the elements before it follow by `before` */
    SWX_NODE_ALT,    /* child: its last branch, likewise */
    SWX_NODE_REPEAT  /* child, min, max */
} swx_node_kind;

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

#define SWX_UNLIMITED UINT32_MAX

typedef struct {
    swx_node_kind kind;
    uint32_t value;
    uint32_t child, before; /* nodes; 0 is none */
    uint32_t min, max;      /* max may be SWX_UNLIMITED */
} swx_node;

typedef struct {
    uint32_t first, count; /* ranges[first .. first+count), sorted and disjoint */
} swx_class;

typedef struct {
    swx_node *nodes; /* nodes[0] is not a node */
    size_t node_count, node_capacity;
    swx_class *classes;
    size_t class_count, class_capacity;
    swx_charset ranges;
    const swx_match_tables *tables; /* borrowed while parsing */
    uint32_t shared[8];             /* class + 1 of . \d \w \s and their opposites under the usual flags */
    uint32_t unicode_word, ascii_word; /* class + 1 of \w where a boundary needs it, else 0 */
} swx_regex;

void swx_regex_free(swx_regex *regex);

/* Parses one pattern and adds its tree; *root is never 0 on success.  Status as swx_match_new; after a failure only
 * swx_regex_free is legal. */
swx_status swx_regex_parse(swx_regex *regex, swx_pattern pattern, uint32_t *root, swx_error *err);

/* Whether a tree is a plain sequence of characters (or empty). */
bool swx_regex_is_literal(const swx_regex *regex, uint32_t root);

/* Writes a literal's UTF-8, at most as long as its pattern was; returns the length.  A NULL `out` only counts. */
size_t swx_regex_literal(const swx_regex *regex, uint32_t root, uint8_t *out);

/* Encodes one code point (no surrogate) into out, 1 to 4 bytes; returns how many. */
size_t swx_utf8_encode(uint32_t code_point, uint8_t out[4]);

#endif
