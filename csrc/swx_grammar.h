/* swx_grammar.h: the parser behind swx_command.h: words in swx_words.c, the commands that are made of them in
 * swx_grammar.c.
 *
 * Every parsing function returns true when it has moved `at` past its construct, and false as soon as anything is not
 * certainly right; false ends the whole parse, so nothing is ever undone. */
#ifndef SWX_GRAMMAR_H
#define SWX_GRAMMAR_H

#include <string.h>

#include "swx_command.h"

/* Nesting of compound commands, substitutions and parameter expansions that is followed; deeper is SWX_UNSURE.
 * One level costs at most about 1 KiB of stack. */
#define SWX_COMMAND_DEPTH 48

/* Here-documents that may be open at the same newline; more is SWX_UNSURE. */
#define SWX_COMMAND_HEREDOCS 8

typedef struct {
    const uint8_t *start; /* the delimiter, its quotes taken off */
    size_t size;
    bool quoted; /* the body is literal: backslash-newline does not join lines */
    bool dashed; /* <<- : leading tabs do not count */
} heredoc;

typedef struct {
    const uint8_t *at, *end;
    unsigned depth;
    unsigned substitutions; /* $( <( >( around us */
    unsigned pending;       /* here-documents whose bodies begin after the next newline */
    unsigned counted; /* pairs of parentheses around us that bash closes by counting, blind to expansions in them */
    bool frozen;      /* inside of a substitution of a command whose here-document is pending: no newline may come */
    bool dot, background;
    bool unknown; /* a command is none of those that are known to neither read nor wait in the shell itself */
    const uint8_t *function; /* the name of the last one that is defined */
    size_t function_size;
    heredoc heredocs[SWX_COMMAND_HEREDOCS];
} parser;

enum { BLANK = 1, META = 2, SPECIAL = 4, NAME = 8, DIGIT = 16, CONTROL = 32 };

typedef enum {
    PLAIN,       /* an argument */
    FIRST,       /* may be an assignment, with an index or a list */
    DECLARATION, /* an argument of declare and its like: may be an assignment of a list */
    ELEMENT      /* of an assigned list */
} word_kind;

typedef struct {
    const uint8_t *start;
    size_t size;
    bool literal; /* no quotes, no expansions, no joined lines */
    bool assignment;
} word;

extern const uint8_t swx_class[256];

static inline bool is_name(uint8_t c) { return swx_class[c] & NAME; }
static inline bool is_name_start(uint8_t c) { return (swx_class[c] & (NAME | DIGIT)) == NAME; }

/* The byte `ahead` of the current one; NUL past the end (a NUL byte in the text has ended the scan before). */
static inline uint8_t peek(const parser *p, size_t ahead)
{
    return (size_t)(p->end - p->at) > ahead ? p->at[ahead] : 0;
}

static inline bool at_end(const parser *p) { return p->at == p->end; }

/* A word cannot go on here. */
static inline bool at_boundary(const parser *p) { return at_end(p) || swx_class[*p->at] & (BLANK | META); }

static inline bool joins(const parser *p) { return peek(p, 0) == '\\' && peek(p, 1) == '\n'; }

static inline bool at_angle(const parser *p) { return peek(p, 0) == '<' || peek(p, 0) == '>'; }

/* At <( or >( . */
static inline bool opens_process(const parser *p) { return at_angle(p) && peek(p, 1) == '('; }

static inline bool descend(parser *p) { return p->depth++ < SWX_COMMAND_DEPTH; }

static inline bool ascend(parser *p)
{
    p->depth--;
    return true;
}

/* The first byte decides nearly always; it is looked at before any call. */
static inline bool same(const uint8_t *text, size_t size, const char *literal)
{
    return size && *text == (uint8_t)*literal && size == strlen(literal) && memcmp(text, literal, size) == 0;
}

/* Whether a text ends in an odd number of backslashes. */
static inline bool odd_backslashes(const uint8_t *start, const uint8_t *end)
{
    const uint8_t *at = end;
    while (at > start && at[-1] == '\\') {
        at--;
    }
    return (end - at) & 1;
}

static inline bool is_word(const word *w, const char *text) { return w->literal && same(w->start, w->size, text); }

/* At a word rather than at an operator or the end. */
static inline bool at_word(const parser *p)
{
    if (at_end(p)) {
        return false;
    }
    return !(swx_class[*p->at] & META) || opens_process(p);
}

static inline bool all_digits(const word *w)
{
    for (size_t i = 0; i < w->size; i++) {
        if (!(swx_class[w->start[i]] & DIGIT)) {
            return false;
        }
    }
    return w->literal;
}

/* ---- swx_words.c ---- */

/* Blanks, joined lines and a comment, up to the next token or newline; newlines: any number of these too. */
bool swx_parse_blanks(parser *p);
bool swx_parse_newlines(parser *p);

bool swx_parse_single_quotes(parser *p);
bool swx_parse_double_quotes(parser *p);

/* An expansion where bash only counts parentheses (and skips quotes): no other reading may be possible. */
bool swx_parse_counted_dollar(parser *p);

/* The inside of (( )) up to its end.  `at` is after the two opening parentheses.  Counts the semicolons outside of
 * expansions. */
bool swx_parse_arithmetic(parser *p, size_t *semicolons);

/* `at` is on the first byte of a word: no blank, no newline, no operator other than <( and >(. */
bool swx_parse_word(parser *p, word_kind kind, word *w);

/* The given keyword, whole and unquoted. */
bool swx_parse_keyword(parser *p, const char *text);

/* `at` is on < or > or &>.  Redirections: after a compound command. */
bool swx_parse_redirection(parser *p);
bool swx_parse_redirections(parser *p, bool *any);

/* ---- swx_grammar.c ---- */

/* Commands up to the end, a closing word, `)`, or `;;`, none of them consumed. */
bool swx_parse_list(parser *p, size_t *count);

/* Reads a text that has no NUL byte; text is not NULL.
 *
 * EMPTY or COMPLETE: adds to *flags what it has seen of SWX_SCAN_BACKGROUND, SWX_SCAN_PARSE_STATE (it runs `.`) and
 * SWX_SCAN_UNKNOWN.  UNSURE: *stop is the offset at which it gave up. */
swx_verdict swx_grammar_read(const uint8_t *text, size_t size, unsigned *flags, size_t *stop);

#endif
