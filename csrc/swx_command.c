/* Layout of this file, bottom of the grammar first:
 *
 *   characters, blanks, here-documents, quotes and expansions, words, redirections, [[ ]], compound commands, lists,
 *   the facts that need no parser (flags), delivery.
 *
 * Every parsing function returns true when it has moved `at` past its construct, and false as soon as anything is not
 * certainly right; false ends the whole parse, so nothing is ever undone.
 */
#include "swx_command.h"

#include <string.h>

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

/* ---- characters ---- */

enum { BLANK = 1, META = 2, SPECIAL = 4, NAME = 8, DIGIT = 16, CONTROL = 32 };

#define X4(v) v, v, v, v
static const uint8_t CLASS[256] = {
    [0x00] = X4(CONTROL),
    X4(CONTROL),
    CONTROL,
    ['\n' + 1] = CONTROL,
    [0x0c] = X4(CONTROL),
    X4(CONTROL),
    X4(CONTROL),
    X4(CONTROL),
    X4(CONTROL),
    [0x7f] = CONTROL,
    [' '] = BLANK,
    ['\t'] = BLANK,
    ['\n'] = META,
    [';'] = META,
    ['&'] = META,
    ['|'] = META,
    ['<'] = META,
    ['>'] = META,
    ['('] = META,
    [')'] = META,
    ['\\'] = SPECIAL,
    ['\''] = SPECIAL,
    ['"'] = SPECIAL,
    ['$'] = SPECIAL,
    ['`'] = SPECIAL,
    ['0'] = X4(NAME | DIGIT),
    X4(NAME | DIGIT),
    NAME | DIGIT,
    NAME | DIGIT,
    ['A'] = X4(NAME),
    X4(NAME),
    X4(NAME),
    X4(NAME),
    X4(NAME),
    X4(NAME),
    NAME,
    NAME,
    ['_'] = NAME,
    ['a'] = X4(NAME),
    X4(NAME),
    X4(NAME),
    X4(NAME),
    X4(NAME),
    X4(NAME),
    NAME,
    NAME,
};
#undef X4

static bool is_name(uint8_t c) { return CLASS[c] & NAME; }
static bool is_name_start(uint8_t c) { return (CLASS[c] & (NAME | DIGIT)) == NAME; }

/* The byte `ahead` of the current one; NUL past the end (a NUL byte in the text has ended the scan before). */
static uint8_t peek(const parser *p, size_t ahead) { return (size_t)(p->end - p->at) > ahead ? p->at[ahead] : 0; }

static bool at_end(const parser *p) { return p->at == p->end; }

/* A word cannot go on here. */
static bool at_boundary(const parser *p) { return at_end(p) || CLASS[*p->at] & (BLANK | META); }

static bool joins(const parser *p) { return peek(p, 0) == '\\' && peek(p, 1) == '\n'; }

static bool at_angle(const parser *p) { return peek(p, 0) == '<' || peek(p, 0) == '>'; }

/* At <( or >( . */
static bool opens_process(const parser *p) { return at_angle(p) && peek(p, 1) == '('; }

static bool descend(parser *p) { return p->depth++ < SWX_COMMAND_DEPTH; }

static bool ascend(parser *p)
{
    p->depth--;
    return true;
}

/* The first byte decides nearly always; it is looked at before any call. */
static bool same(const uint8_t *text, size_t size, const char *literal)
{
    return size && *text == (uint8_t)*literal && size == strlen(literal) && memcmp(text, literal, size) == 0;
}

/* Blanks, joined lines and a comment, up to the next token or newline. */
static bool blanks(parser *p)
{
    for (; !at_end(p); p->at++) {
        uint8_t c = *p->at;
        if (c == '#') {
            const uint8_t *newline = memchr(p->at, '\n', (size_t)(p->end - p->at));
            p->at = newline ? newline : p->end;
            return true;
        }
        if (joins(p)) {
            if (p->pending || p->frozen || p->end - p->at == 2) { /* where do the bodies begin? rare: ask */
                return false;
            }
            p->at++;
        } else if (!(CLASS[c] & BLANK)) {
            return true;
        }
    }
    return true;
}

/* ---- here-documents ---- */

static bool odd_backslashes(const uint8_t *start, const uint8_t *end)
{
    const uint8_t *at = end;
    while (at > start && at[-1] == '\\') {
        at--;
    }
    return (end - at) & 1;
}

/* Reads one body, up to and with the line that is its delimiter. */
static bool heredoc_body(parser *p, const heredoc *doc)
{
    bool joined = false; /* this line continues the one before */
    while (!at_end(p)) {
        const uint8_t *line = p->at;
        const uint8_t *newline = memchr(line, '\n', (size_t)(p->end - line));
        const uint8_t *stop = newline ? newline : p->end;
        p->at = newline ? newline + 1 : p->end;
        while (doc->dashed && !joined && line < stop && *line == '\t') {
            line++;
        }
        size_t size = (size_t)(stop - line);
        bool continues = !doc->quoted && odd_backslashes(line, stop);
        if (!joined && continues && size - 1 <= doc->size && memcmp(line, doc->start, size - 1) == 0) {
            return false; /* the joined line could be the delimiter */
        }
        if (!joined && !continues && size >= doc->size && memcmp(line, doc->start, doc->size) == 0) {
            if (size == doc->size) {
                return true;
            }
            if (p->substitutions) { /* bash ends the body at `EOF)` there */
                return false;
            }
        }
        joined = continues;
    }
    return false;
}

/* Consumes a newline and the here-documents that begin after it. */
static bool newline(parser *p)
{
    if (p->frozen) {
        return false;
    }
    p->at++;
    for (unsigned i = 0; i < p->pending; i++) {
        if (!heredoc_body(p, &p->heredocs[i])) {
            return false;
        }
    }
    p->pending = 0;
    return true;
}

/* Any number of blanks, comments and newlines. */
static bool newlines(parser *p)
{
    while (blanks(p)) {
        if (peek(p, 0) != '\n') {
            return true;
        }
        if (!newline(p)) {
            return false;
        }
    }
    return false;
}

/* The delimiter after << : WORD, 'WORD', "WORD" or \WORD of harmless characters. */
static bool heredoc_start(parser *p, bool dashed)
{
    uint8_t quote = peek(p, 0);
    if (p->pending == SWX_COMMAND_HEREDOCS) {
        return false;
    }
    bool paired = quote == '\'' || quote == '"', quoted = paired || quote == '\\';
    p->at += quoted;
    const uint8_t *start = p->at;
    while (!at_end(p) && (is_name(*p->at) || memchr("-.:/+@%^,=!~", *p->at, 12) || (paired && *p->at == ' '))) {
        p->at++;
    }
    size_t size = (size_t)(p->at - start);
    if (!size || (paired && peek(p, 0) != quote)) {
        return false;
    }
    p->at += paired;
    if (CLASS[*start] & DIGIT && at_angle(p)) {
        return false; /* may be the number of the next redirection */
    }
    p->heredocs[p->pending++] = (heredoc){ start, size, quoted, dashed };
    return at_boundary(p);
}

/* ---- quotes and expansions ---- */

static bool list(parser *p, size_t *count);
static bool dollar(parser *p, bool in_quotes);

/* Text between two points of one token may hold a newline only when no here-document waits for one. */
static bool one_piece(const parser *p, const uint8_t *start)
{
    return !p->pending || !memchr(start, '\n', (size_t)(p->at - start));
}

static bool single_quotes(parser *p)
{
    const uint8_t *start = ++p->at;
    const uint8_t *close = memchr(start, '\'', (size_t)(p->end - start));
    if (!close) {
        return false;
    }
    p->at = close + 1;
    return one_piece(p, start);
}

/* Text up to `close` in which a backslash takes the next byte: $'...' and `...`. */
static bool escaped_until(parser *p, uint8_t close)
{
    const uint8_t *start = ++p->at;
    while (!at_end(p)) {
        uint8_t c = *p->at++;
        if (c == close) {
            return one_piece(p, start);
        }
        if (c == '\\' && !at_end(p)) {
            p->at++;
        }
    }
    return false;
}

static bool double_quotes(parser *p)
{
    const uint8_t *start = ++p->at;
    while (!at_end(p)) {
        uint8_t c = *p->at;
        if (!(CLASS[c] & SPECIAL) || c == '\'') {
            p->at++;
        } else if (c == '"') {
            p->at++;
            return one_piece(p, start);
        } else if (c == '\\') {
            p->at++;
            if (at_end(p)) {
                return false;
            }
            p->at++;
        } else if (!(c == '$' ? dollar(p, true) : escaped_until(p, '`'))) {
            return false;
        }
    }
    return false;
}

/* $( ) <( ) >( ): `at` is after the opening parenthesis. */
static bool substitution(parser *p)
{
    bool frozen = p->frozen;
    unsigned pending = p->pending;
    size_t count = 0;
    if (joins(p) || !descend(p)) {
        return false;
    }
    p->frozen = frozen || pending;
    p->substitutions++;
    if (!list(p, &count) || peek(p, 0) != ')' || p->pending != pending) {
        return false;
    }
    p->at++;
    p->substitutions--;
    p->frozen = frozen;
    return ascend(p);
}

/* An expansion where bash only counts parentheses (and skips quotes): no other reading may be possible. */
static bool counted_dollar(parser *p)
{
    const uint8_t *start = p->at;
    p->counted++;
    if (!dollar(p, false)) {
        return false;
    }
    p->counted--;
    size_t size = (size_t)(p->at - start);
    if (memchr(start, '\\', size) || memmem(start, size, "<<", 2) || memmem(start, size, "esac", 4)) {
        return false;
    }
    for (const uint8_t *at = start; (at = memchr(at, '#', (size_t)(p->at - at))); at++) {
        if (at[-1] != '$' && at[-1] != '{' && !is_name(at[-1]) && at[-1] != '#') { /* may be a comment */
            return false;
        }
    }
    return true;
}

/* The inside of (( )) up to its end.  `at` is after the two opening parentheses.  Counts the semicolons outside of
 * expansions. */
static bool arithmetic(parser *p, size_t *semicolons)
{
    const uint8_t *start = p->at;
    size_t open = 0;
    *semicolons = 0;
    while (!at_end(p)) {
        uint8_t c = *p->at;
        if (c == '$' || c == '"') {
            if (!(c == '$' ? counted_dollar(p) : double_quotes(p))) {
                return false;
            }
            continue;
        }
        if (CLASS[c] & SPECIAL || opens_process(p)) {
            return false;
        }
        p->at++;
        *semicolons += c == ';';
        open += c == '(';
        if (c == ')') {
            if (open) {
                open--;
            } else {
                return peek(p, 0) == ')' && p->at++ && one_piece(p, start);
            }
        }
    }
    return false;
}

/* An expansion in an index, where bash may count brackets: they must be balanced in both readings. */
static bool index_dollar(parser *p)
{
    const uint8_t *start = p->at;
    bool quotes = false, brackets = false;
    size_t open = 0;
    if (!counted_dollar(p)) {
        return false;
    }
    for (const uint8_t *at = start; at < p->at; at++) {
        quotes |= CLASS[*at] & SPECIAL && *at != '$';
        brackets |= *at == '[';
        open += *at == '[';
        if (*at == ']' && !open--) {
            return false;
        }
    }
    return !open && !(quotes && brackets);
}

/* [index] of an array; `at` is on the bracket. */
static bool subscript(parser *p)
{
    const uint8_t *start = ++p->at;
    while (!at_end(p)) {
        uint8_t c = *p->at;
        if (c == ']') {
            return p->at++ != start;
        }
        if (c == '$' || c == '"' || c == '\'') {
            if (!(c == '$' ? index_dollar(p) : c == '"' ? double_quotes(p) : single_quotes(p))) {
                return false;
            }
        } else if (is_name(c) || memchr("@*+-/.,:%", c, 9)) {
            p->at++;
        } else {
            return false;
        }
    }
    return false;
}

/* The parameter of ${...}, with a leading # or ! and an index. */
static bool parameter(parser *p)
{
    if ((peek(p, 0) == '#' || peek(p, 0) == '!') && peek(p, 1) != '}') {
        p->at++;
    }
    uint8_t c = peek(p, 0);
    if (is_name(c)) {
        bool digits = CLASS[c] & DIGIT;
        while (is_name(peek(p, 0)) && (!digits || CLASS[*p->at] & DIGIT)) {
            p->at++;
        }
        return digits || peek(p, 0) != '[' || subscript(p);
    }
    if (!c || !memchr("@*#?-$!", c, 7)) {
        return false;
    }
    p->at++;
    return true;
}

/* ${...}; `at` is after the brace. */
static bool braces(parser *p, bool in_quotes)
{
    if (!descend(p) || !parameter(p)) {
        return false;
    }
    uint8_t operator= peek(p, 0);
    if (!operator|| !memchr("}:-=?+%#/^,@~*", operator, 14)) {
        return false;
    }
    while (!at_end(p)) {
        uint8_t c = *p->at;
        bool fine = true;
        if (c == '}') {
            p->at++;
            return ascend(p);
        }
        if (c == '\n' || opens_process(p) || (p->counted && (c == '(' || c == ')'))) {
            return false;
        }
        if (!(CLASS[c] & SPECIAL)) {
            p->at++;
        } else if (c == '\\') {
            fine = peek(p, 1) && peek(p, 1) != '\n';
            p->at += fine ? 2 : 0;
        } else if (c == '\'') { /* whether it quotes inside of double quotes depends on the operator */
            fine = !in_quotes && single_quotes(p);
        } else {
            fine = c == '"' ? double_quotes(p) : c == '$' ? dollar(p, in_quotes) : escaped_until(p, '`');
        }
        if (!fine) {
            return false;
        }
    }
    return false;
}

/* Everything that begins with a dollar. */
static bool dollar(parser *p, bool in_quotes)
{
    uint8_t c = peek(p, 1);
    size_t semicolons;
    switch (c) {
    case '(':
        p->at += 2;
        if (peek(p, 0) == '(') {
            p->at++;
            return descend(p) && arithmetic(p, &semicolons) && ascend(p);
        }
        return substitution(p);
    case '{': p->at += 2; return braces(p, in_quotes);
    case '[': /* old arithmetic */ return false;
    case '\\': p->at++; return peek(p, 1) != '\n'; /* the next line could complete the expansion */
    case '$': p->at += 2; return true;
    case '\'': p->at++; return in_quotes || escaped_until(p, '\'');
    case '"': p->at++; return in_quotes || double_quotes(p);
    default: p->at++; return true;
    }
}

/* ---- words ---- */

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

static bool is_word(const word *w, const char *text) { return w->literal && same(w->start, w->size, text); }

static bool read_word(parser *p, word_kind kind, word *w);

/* name=( ... ); `at` is on the parenthesis. */
static bool assigned_list(parser *p)
{
    word w;
    bool frozen = p->frozen;
    if (!descend(p)) {
        return false;
    }
    p->frozen = frozen || p->pending;
    p->at++;
    while (newlines(p)) {
        if (peek(p, 0) == ')') {
            p->at++;
            p->frozen = frozen;
            return ascend(p) && at_boundary(p);
        }
        if (at_end(p) || CLASS[*p->at] & META) {
            return false;
        }
        if (*p->at == '[') {
            if (!subscript(p) || peek(p, 0) != '=') {
                return false;
            }
            p->at++;
        }
        if (!at_boundary(p) && !read_word(p, ELEMENT, &w)) {
            return false;
        }
    }
    return false;
}

/* The part of a word that decides whether it assigns. */
static bool assignment(parser *p, word_kind kind, word *w)
{
    bool indexed = false;
    while (is_name(peek(p, 0))) {
        p->at++;
    }
    if (peek(p, 0) == '[' && kind != DECLARATION) {
        w->literal = false;
        indexed = true;
        if (kind == ELEMENT || !subscript(p)) {
            return false;
        }
    }
    if (joins(p)) {
        return false;
    }
    size_t skip = peek(p, 0) == '+' ? 1 : 0;
    if (peek(p, skip) != '=') {
        return !(skip && peek(p, 1) == '\\' && peek(p, 2) == '\n');
    }
    p->at += skip + 1;
    w->assignment = true;
    if (joins(p)) {
        return false;
    }
    if (peek(p, 0) == '(') {
        w->literal = false;
        return !indexed && kind != ELEMENT && assigned_list(p);
    }
    return true;
}

/* `at` is on the first byte of a word: no blank, no newline, no operator other than <( and >(. */
static bool read_word(parser *p, word_kind kind, word *w)
{
    *w = (word){ .start = p->at, .literal = true };
    if (kind != PLAIN && is_name_start(*p->at) && !assignment(p, kind, w)) {
        return false;
    }
    if (CLASS[peek(p, 0)] & META && p->at == w->start) { /* <( or >( */
        w->literal = false;
        p->at += 2;
        if (!substitution(p)) {
            return false;
        }
    }
    for (;;) {
        while (!at_end(p) && !(CLASS[*p->at] & (BLANK | META | SPECIAL))) {
            p->at++;
        }
        if (at_boundary(p)) {
            break;
        }
        uint8_t c = *p->at;
        bool fine = true;
        if (joins(p)) { /* `word\` newline blank ends the word; otherwise it goes on and is no keyword to us */
            uint8_t next = peek(p, 2);
            if (p->pending || p->frozen || !next || (kind != PLAIN && !(CLASS[next] & BLANK))) {
                return false;
            }
            if (CLASS[next] & BLANK) {
                break;
            }
            w->literal = false;
            p->at += 2;
            continue;
        }
        w->literal = false;
        switch (c) {
        case '\\':
            fine = p->end - p->at > 1;
            p->at += fine ? 2 : 0;
            break;
        case '\'': fine = single_quotes(p); break;
        case '"': fine = double_quotes(p); break;
        case '`': fine = escaped_until(p, '`'); break;
        default: fine = dollar(p, false);
        }
        if (!fine) {
            return false;
        }
    }
    w->size = (size_t)(p->at - w->start);
    /* word( is a function, an extended pattern or wrong; word<( is one word */
    return !opens_process(p);
}

/* At a word rather than at an operator or the end. */
static bool at_word(const parser *p)
{
    if (at_end(p)) {
        return false;
    }
    return !(CLASS[*p->at] & META) || opens_process(p);
}

/* The given keyword, whole and unquoted. */
static bool keyword(parser *p, const char *text)
{
    if (peek(p, 0) != (uint8_t)*text) {
        return false;
    }
    size_t size = strlen(text);
    if ((size_t)(p->end - p->at) < size || memcmp(p->at, text, size) != 0) {
        return false;
    }
    const uint8_t *start = p->at;
    p->at += size;
    if (at_boundary(p)) {
        return true;
    }
    p->at = start;
    return false;
}

static bool all_digits(const word *w)
{
    for (size_t i = 0; i < w->size; i++) {
        if (!(CLASS[w->start[i]] & DIGIT)) {
            return false;
        }
    }
    return w->literal;
}

/* ---- redirections ---- */

/* `at` is on < or > or &>. */
static bool redirection(parser *p)
{
    word w;
    bool duplicates = false;
    uint8_t c = *p->at++;
    if (c == '&') {
        p->at++;
        p->at += peek(p, 0) == '>';
    } else if (c == '<' && peek(p, 0) == '<') {
        p->at++;
        if (peek(p, 0) != '<') {
            bool dashed = peek(p, 0) == '-';
            p->at += dashed;
            return !joins(p) && blanks(p) && heredoc_start(p, dashed);
        }
        p->at++;
    } else if (peek(p, 0) == '&') {
        p->at++;
        duplicates = true;
    } else if (peek(p, 0) == '>' || (c == '>' && peek(p, 0) == '|')) {
        p->at++;
    }
    if (joins(p) || !blanks(p) || !at_word(p) || !read_word(p, PLAIN, &w)) {
        return false;
    }
    if (at_angle(p) && (all_digits(&w) || w.start[0] == '{')) {
        return false; /* >2>x : the number belongs to the second, and the first has no target */
    }
    return !duplicates || w.start[0] != '-' || w.size == 1; /* >&-x closes, and x is another word */
}

/* Redirections after a compound command. */
static bool redirections(parser *p, bool *any)
{
    *any = false;
    while (blanks(p)) {
        const uint8_t *start = p->at;
        while (CLASS[peek(p, 0)] & DIGIT) {
            p->at++;
        }
        uint8_t c = peek(p, 0);
        bool redirects = c == '<' || c == '>' || (c == '&' && peek(p, 1) == '>' && p->at == start);
        if (!redirects || peek(p, 1) == '(') {
            p->at = start;
            return true;
        }
        if (!redirection(p)) {
            return false;
        }
        *any = true;
    }
    return false;
}

/* ---- [[ ]] ---- */

static bool in_set(const word *w, const char *const *set)
{
    for (; *set; set++) {
        if (is_word(w, *set)) {
            return true;
        }
    }
    return false;
}

static bool cond_word(parser *p, word *w)
{
    if (!blanks(p) || !at_word(p) || *p->at == '<' || *p->at == '>' || !read_word(p, PLAIN, w)) {
        return false;
    }
    uint8_t c = peek(p, 0);
    return c == ')' || c == '\n' || CLASS[c] & BLANK;
}

/* ( ... ) in a pattern or a regular expression, where blanks and | stand for themselves. */
static bool pattern_group(parser *p)
{
    size_t open = 0;
    while (!at_end(p)) {
        uint8_t c = *p->at;
        bool fine = true;
        switch (c) {
        case '(':
            open++;
            p->at++;
            break;
        case ')':
            p->at++;
            if (!--open) {
                return true;
            }
            break;
        case '\\':
            fine = peek(p, 1) && peek(p, 1) != '\n';
            p->at += fine ? 2 : 0;
            break;
        case '"': fine = double_quotes(p); break;
        case '$': fine = counted_dollar(p); break;
        case '\'': fine = single_quotes(p); break;
        case '\n':
        case '`':
        case '#':
        case '<':
        case '>': fine = false; break;
        default: p->at++;
        }
        if (!fine) {
            return false;
        }
    }
    return false;
}

/* The right side of == and =~. */
static bool cond_pattern(parser *p, bool regex)
{
    const uint8_t *start;
    word w;
    if (!blanks(p)) {
        return false;
    }
    for (start = p->at; !at_end(p);) {
        uint8_t c = *p->at;
        if (c == '(') {
            if (!regex && (p->at == start || !memchr("?*+@!", p->at[-1], 5))) {
                return false;
            }
            if (!pattern_group(p)) {
                return false;
            }
        } else if (c == '|' && regex && p->at != start) {
            p->at++;
        } else if (CLASS[c] & (BLANK | META)) {
            break;
        } else if (joins(p) || !read_word(p, PLAIN, &w)) {
            return false;
        } else if (joins(p)) {
            return false;
        }
    }
    uint8_t c = peek(p, 0);
    return p->at != start && (c == ')' || c == '\n' || CLASS[c] & BLANK);
}

static bool cond_list(parser *p);

static bool cond_term(parser *p)
{
    static const char *const unary[] = { "-a", "-b", "-c", "-d", "-e", "-f", "-g", "-h", "-k",
                                         "-n", "-p", "-r", "-s", "-t", "-u", "-v", "-w", "-x",
                                         "-z", "-G", "-L", "-N", "-O", "-R", "-S", "-o", NULL };
    static const char *const numeric[] = { "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef", NULL };
    static const char *const pattern[] = { "=", "==", "!=", NULL };
    word w;
    if (!newlines(p)) {
        return false;
    }
    while (peek(p, 0) == '!' && CLASS[peek(p, 1)] & BLANK) {
        p->at++;
        if (!newlines(p)) {
            return false;
        }
    }
    if (peek(p, 0) == '(') {
        p->at++;
        if (joins(p) || !descend(p) || !cond_list(p) || peek(p, 0) != ')') {
            return false;
        }
        p->at++;
        return ascend(p) && newlines(p);
    }
    if (!cond_word(p, &w) || is_word(&w, "]]") || is_word(&w, "!")) {
        return false;
    }
    if (in_set(&w, unary)) {
        return cond_word(p, &w) && !is_word(&w, "]]") && newlines(p);
    }
    if (!blanks(p)) {
        return false;
    }
    uint8_t c = peek(p, 0);
    if (c == '\n') {
        return newlines(p);
    }
    if ((c == '<' || c == '>') && CLASS[peek(p, 1)] & BLANK) {
        p->at++;
        return cond_word(p, &w) && !is_word(&w, "]]") && newlines(p);
    }
    if (CLASS[c] & META) {
        return true;
    }
    if (c == ']' && peek(p, 1) == ']') {
        return true;
    }
    if (!cond_word(p, &w)) {
        return false;
    }
    if (in_set(&w, numeric)) {
        return cond_word(p, &w) && !is_word(&w, "]]") && newlines(p);
    }
    bool regex = is_word(&w, "=~");
    if (!regex && !in_set(&w, pattern)) {
        return false;
    }
    if (!cond_pattern(p, regex)) {
        return false;
    }
    return newlines(p);
}

static bool cond_list(parser *p)
{
    for (;;) {
        if (!cond_term(p)) {
            return false;
        }
        uint8_t c = peek(p, 0);
        if ((c != '&' && c != '|') || peek(p, 1) != c) {
            return true;
        }
        p->at += 2;
    }
}

/* ---- compound commands ---- */

typedef enum {
    BAD,
    CLOSER,   /* a word such as `done` that ends the list around; not consumed */
    SIMPLE,   /* also every compound after which a closing keyword needs a separator */
    COMPOUND, /* ends in a keyword or parenthesis, after which a closing keyword may follow at once */
    FOUND     /* see command() */
} result;

static result command(parser *p);

static bool filled_list(parser *p)
{
    size_t count = 0;
    return list(p, &count) && count;
}

static bool body(parser *p, const char *open, const char *close)
{
    return keyword(p, open) && filled_list(p) && keyword(p, close);
}

static bool if_command(parser *p)
{
    do {
        if (!filled_list(p) || !keyword(p, "then") || !filled_list(p)) {
            return false;
        }
    } while (keyword(p, "elif"));
    if (keyword(p, "else") && !filled_list(p)) {
        return false;
    }
    return keyword(p, "fi");
}

static bool is_identifier(const word *w)
{
    if (!w->literal || !w->size || !is_name_start(w->start[0])) {
        return false;
    }
    for (size_t i = 1; i < w->size; i++) {
        if (!is_name(w->start[i])) {
            return false;
        }
    }
    return true;
}

/* `;` or newline, then newlines. */
static bool separator(parser *p)
{
    if (!blanks(p)) {
        return false;
    }
    if (peek(p, 0) == ';') {
        p->at++;
        return !joins(p) && newlines(p);
    }
    return peek(p, 0) == '\n' && newlines(p);
}

static bool for_command(parser *p, bool select)
{
    word w;
    size_t semicolons;
    if (!blanks(p)) {
        return false;
    }
    if (!select && peek(p, 0) == '(' && peek(p, 1) == '(') {
        p->at += 2;
        return arithmetic(p, &semicolons) && semicolons == 2 && separator(p) && body(p, "do", "done");
    }
    if (!at_word(p) || !read_word(p, PLAIN, &w) || !is_identifier(&w) || !blanks(p)) {
        return false;
    }
    if (keyword(p, "in")) {
        for (;;) {
            if (!blanks(p)) {
                return false;
            }
            if (!at_word(p)) {
                break;
            }
            if (!read_word(p, PLAIN, &w)) {
                return false;
            }
        }
    }
    return separator(p) && body(p, "do", "done");
}

/* One or more patterns and the parenthesis. */
static bool case_patterns(parser *p)
{
    word w;
    if (peek(p, 0) == '(') {
        p->at++;
        if (joins(p)) {
            return false;
        }
    }
    for (;;) {
        if (!blanks(p) || !at_word(p) || *p->at == '<' || *p->at == '>' || !read_word(p, PLAIN, &w) ||
            is_word(&w, "esac") || !blanks(p)) {
            return false;
        }
        if (peek(p, 0) == ')') {
            p->at++;
            return !joins(p);
        }
        if (peek(p, 0) != '|' || peek(p, 1) == '|' || peek(p, 1) == '&') {
            return false;
        }
        p->at++;
        if (joins(p)) {
            return false;
        }
    }
}

static bool case_command(parser *p)
{
    word w;
    if (!blanks(p) || !at_word(p) || !read_word(p, PLAIN, &w) || !newlines(p) || !keyword(p, "in")) {
        return false;
    }
    for (;;) {
        size_t count = 0;
        if (!newlines(p)) {
            return false;
        }
        if (keyword(p, "esac")) {
            return true;
        }
        if (!case_patterns(p) || !list(p, &count)) {
            return false;
        }
        if (peek(p, 0) != ';') {
            return keyword(p, "esac");
        }
        p->at++; /* list() stops at ;; and ;& only */
        if (*p->at++ == ';' && peek(p, 0) == '&') {
            p->at++;
        }
        if (joins(p)) {
            return false;
        }
    }
}

/* Nothing that extglob, aliases or posix mode could read in another way. */
static bool is_function_name(const word *w)
{
    if (!w->literal || !w->size || !is_name_start(w->start[0])) {
        return false;
    }
    for (size_t i = 1; i < w->size; i++) {
        if (!is_name(w->start[i]) && !memchr("-.:", w->start[i], 3)) {
            return false;
        }
    }
    return true;
}

static bool function_parentheses(parser *p)
{
    p->at++;
    if (joins(p) || !blanks(p) || peek(p, 0) != ')') {
        return false;
    }
    p->at++;
    return !joins(p);
}

/* What follows the name: a compound command. */
static result function_body(parser *p, const word *name)
{
    p->function = name->start;
    p->function_size = name->size;
    if (!newlines(p) || !descend(p)) {
        return BAD;
    }
    uint8_t c = peek(p, 0);
    if (c != '(' && !(c == '{' && (CLASS[peek(p, 1)] & BLANK || peek(p, 1) == '\n'))) {
        return BAD;
    }
    if (command(p) == BAD) {
        return BAD;
    }
    ascend(p);
    return SIMPLE;
}

static result function_command(parser *p)
{
    word w;
    if (!blanks(p) || !at_word(p) || !read_word(p, PLAIN, &w) || !is_function_name(&w) || !blanks(p)) {
        return BAD;
    }
    if (peek(p, 0) == '(' && !function_parentheses(p)) {
        return BAD;
    }
    return function_body(p, &w);
}

static result subshell(parser *p)
{
    size_t semicolons;
    p->at++;
    if (peek(p, 0) == '(') {
        p->at++;
        return arithmetic(p, &semicolons) ? SIMPLE : BAD;
    }
    if (joins(p) || !filled_list(p) || peek(p, 0) != ')') {
        return BAD;
    }
    p->at++;
    return joins(p) ? BAD : COMPOUND;
}

static bool cond_command(parser *p) { return CLASS[peek(p, 0)] & BLANK && cond_list(p) && keyword(p, "]]"); }

/* FOUND: no keyword, an ordinary word. */
static result after_keyword(parser *p, const word *w)
{
    static const char *const closers[] = { "then", "elif", "else", "fi", "do", "done", "esac", "}", NULL };
    static const char *const unknown[] = { "in", "]]", "coproc", "time", "!", NULL };
    uint8_t c = w->start[0];
    if (!w->literal || w->size > 8 || !memchr("iwufscted}{[!]", c, 14)) {
        return FOUND;
    }
    if (is_word(w, "if")) {
        return if_command(p) ? COMPOUND : BAD;
    }
    if (is_word(w, "while") || is_word(w, "until")) {
        return filled_list(p) && body(p, "do", "done") ? COMPOUND : BAD;
    }
    if (is_word(w, "for") || is_word(w, "select")) {
        return for_command(p, c == 's') ? COMPOUND : BAD;
    }
    if (is_word(w, "case")) {
        return case_command(p) ? COMPOUND : BAD;
    }
    if (is_word(w, "{")) {
        return filled_list(p) && keyword(p, "}") ? COMPOUND : BAD;
    }
    if (is_word(w, "[[")) {
        return cond_command(p) ? SIMPLE : BAD;
    }
    if (is_word(w, "function")) {
        return function_command(p);
    }
    if (in_set(w, closers)) {
        p->at = w->start;
        return CLOSER;
    }
    return in_set(w, unknown) ? BAD : FOUND;
}

/* ---- simple commands and lists ---- */

/* Notes what matters about the name of a command; returns true. */
static bool command_word(parser *p, const word *w, bool *declares)
{
    static const char *const declarations[] = { "declare", "typeset", "local", "export", "readonly", NULL };
    static const char *const known[] = { "unset", "exec", "set",  "cd",    "echo",  "printf", "test",
                                         "[",     ":",    "true", "false", "sleep", "trap",   NULL };
    *declares = in_set(w, declarations);
    p->dot |= is_word(w, ".");
    if (!p->unknown && !p->substitutions && !*declares) {
        bool defined = p->function && w->size == p->function_size && memcmp(w->start, p->function, w->size) == 0;
        p->unknown = !defined && !in_set(w, known);
    }
    return true;
}

/* The rest of a simple command; `w` is its first word, or size 0 when it begins with a redirection. */
static result simple(parser *p, const word *first)
{
    word w = *first;
    bool named = false, declares = false;
    if (w.size && !w.assignment) {
        if (*w.start == '{' && at_angle(p)) {
            return BAD; /* {name}> : a redirection, and the command is still to come */
        }
        if (all_digits(&w) && at_angle(p)) {
            named = false;
        } else {
            if (!blanks(p)) {
                return BAD;
            }
            if (peek(p, 0) == '(') {
                return is_function_name(&w) && function_parentheses(p) ? function_body(p, &w) : BAD;
            }
            named = command_word(p, &w, &declares);
        }
    }
    for (;;) {
        if (!blanks(p)) {
            return BAD;
        }
        uint8_t c = peek(p, 0);
        if (at_word(p)) {
            if (!read_word(p, named ? declares ? DECLARATION : PLAIN : FIRST, &w)) {
                return BAD;
            }
            if (named || w.assignment || (all_digits(&w) && at_angle(p))) {
                continue;
            }
            if (*w.start == '{' && at_angle(p)) {
                return BAD;
            }
            const uint8_t *after = p->at;
            if (w.literal && w.size <= 8 && memchr("iwufscted}{[!]", w.start[0], 14) && after_keyword(p, &w) != FOUND) {
                return BAD; /* a keyword after an assignment or a redirection is an ordinary word: ask */
            }
            p->at = after;
            named = command_word(p, &w, &declares);
        } else if (c == '<' || c == '>' || (c == '&' && peek(p, 1) == '>')) {
            declares = false; /* bash, too, forgets it here */
            if (!redirection(p)) {
                return BAD;
            }
        } else {
            return c == '(' ? BAD : SIMPLE;
        }
    }
}

/* One command with its redirections; `at` is on its first byte. */
static result command(parser *p)
{
    word w = { 0 };
    result found;
    bool redirected;
    uint8_t c = peek(p, 0);
    if (at_end(p) || !descend(p)) {
        return BAD;
    }
    if (c == '(') {
        found = subshell(p);
    } else if (!at_word(p)) {
        found = c == '<' || c == '>' || (c == '&' && peek(p, 1) == '>') ? simple(p, &w) : BAD;
        ascend(p);
        return found;
    } else {
        if (!read_word(p, FIRST, &w)) {
            return BAD;
        }
        found = w.assignment ? FOUND : after_keyword(p, &w);
        if (found == FOUND) {
            found = simple(p, &w);
            ascend(p);
            return found;
        }
    }
    if (found == BAD || found == CLOSER) {
        ascend(p);
        return found;
    }
    if (!redirections(p, &redirected)) {
        return BAD;
    }
    ascend(p);
    return redirected ? SIMPLE : found;
}

/* `!` or `time` in front of a pipeline, with a blank and a command after it. */
static bool prefix(parser *p, bool *any)
{
    const uint8_t *start = p->at;
    *any = keyword(p, "!") || keyword(p, "time");
    if (!*any) { /* `!\` newline: may be the keyword */
        return !(peek(p, 0) == '!' && peek(p, 1) == '\\');
    }
    if (!(CLASS[peek(p, 0)] & BLANK) || !blanks(p) || !(at_word(p) || peek(p, 0) == '(')) {
        return false;
    }
    uint8_t next = *p->at;
    return next != '!' && !(next == '-' && *start == 't') && next != '\\';
}

static result pipeline(parser *p)
{
    bool prefixed;
    if (!prefix(p, &prefixed)) {
        return BAD;
    }
    result found = command(p);
    if (found == CLOSER && prefixed) {
        return BAD;
    }
    while (found == SIMPLE || found == COMPOUND) {
        if (!blanks(p)) {
            return BAD;
        }
        if (peek(p, 0) != '|' || peek(p, 1) == '|') {
            return found;
        }
        p->at += peek(p, 1) == '&' ? 2 : 1;
        if (joins(p) || !newlines(p)) {
            return BAD;
        }
        found = command(p);
        if (found == CLOSER) {
            return BAD;
        }
    }
    return found;
}

static result and_or(parser *p)
{
    result found = pipeline(p);
    while (found == SIMPLE || found == COMPOUND) {
        uint8_t c = peek(p, 0);
        if ((c != '&' && c != '|') || peek(p, 1) != c) {
            return found;
        }
        p->at += 2;
        if (!newlines(p)) {
            return BAD;
        }
        found = pipeline(p);
        if (found == CLOSER) {
            return BAD;
        }
    }
    return found;
}

/* Commands up to the end, a closing word, `)`, or `;;`, none of them consumed. */
static bool list(parser *p, size_t *count)
{
    bool must_close = false; /* `fi done`: a command may not follow, only a closing word */
    for (;;) {
        if (!newlines(p)) {
            return false;
        }
        uint8_t c = peek(p, 0), next = peek(p, 1);
        if (at_end(p) || c == ')' || (c == ';' && (next == ';' || next == '&'))) {
            return !must_close;
        }
        result found = and_or(p);
        if (found == BAD || (must_close && found != CLOSER)) {
            return false;
        }
        if (found == CLOSER) {
            return true;
        }
        (*count)++;
        c = peek(p, 0);
        next = peek(p, 1);
        must_close = false;
        if (c == ';' && next != ';' && next != '&') {
            p->at++;
            if (joins(p)) {
                return false;
            }
        } else if (c == '&') {
            p->background = true;
            p->at++;
            if (joins(p)) {
                return false;
            }
        } else if (!at_end(p) && c != '\n' && c != ')' && c != ';') {
            if (found != COMPOUND || CLASS[c] & META) {
                return false;
            }
            must_close = true;
        }
    }
}

/* ---- what needs no parser ---- */

typedef struct {
    const char *text;
    unsigned flags;
} mention;

enum { SEEN_SET = 1 << 30, SEEN_EDITOR = 1 << 29 };

static unsigned mentioned(const uint8_t *start, size_t size)
{
    static const mention words[] = {
        { "alias", SWX_SCAN_PARSE_STATE },
        { "unalias", SWX_SCAN_PARSE_STATE },
        { "BASH_ALIASES", SWX_SCAN_PARSE_STATE },
        { "shopt", SWX_SCAN_PARSE_STATE },
        { "posix", SWX_SCAN_PARSE_STATE },
        { "POSIXLY_CORRECT", SWX_SCAN_PARSE_STATE },
        { "eval", SWX_SCAN_PARSE_STATE },
        { "source", SWX_SCAN_PARSE_STATE },
        { "exec", SWX_SCAN_EXEC },
        { "stty", SWX_SCAN_STTY },
        { "reset", SWX_SCAN_STTY },
        { "tput", SWX_SCAN_STTY },
        { "PS0", SWX_SCAN_PROMPT },
        { "PS1", SWX_SCAN_PROMPT },
        { "PS2", SWX_SCAN_PROMPT },
        { "PROMPT_COMMAND", SWX_SCAN_PROMPT },
        { "promptvars", SWX_SCAN_PROMPT },
        { "activate", SWX_SCAN_PROMPT },
        { "deactivate", SWX_SCAN_PROMPT },
        { "conda", SWX_SCAN_PROMPT },
        { "mamba", SWX_SCAN_PROMPT },
        { "micromamba", SWX_SCAN_PROMPT },
        { "starship", SWX_SCAN_PROMPT },
        { "set", SEEN_SET },
        { "emacs", SEEN_EDITOR },
        { "vi", SEEN_EDITOR },
        { "jobs", SWX_SCAN_JOBS },
        { "wait", SWX_SCAN_JOBS },
        { "fg", SWX_SCAN_JOBS },
        { "bg", SWX_SCAN_JOBS },
        { "disown", SWX_SCAN_JOBS },
        { "CHLD", SWX_SCAN_CHLD },
        { "SIGCHLD", SWX_SCAN_CHLD },
    };
    for (size_t i = 0; i < SWX_COUNT(words); i++) {
        if (same(start, size, words[i].text)) {
            return words[i].flags;
        }
    }
    return 0;
}

/* Bit n of sizes[c]: one of the words has n letters and begins with c.  Few words of a text get past it.
 * Control bytes are noticed on the way. */
static unsigned mentions(const uint8_t *text, size_t size)
{
    static const uint32_t sizes[256] = {
        ['a'] = 1 << 5 | 1 << 8,  ['u'] = 1 << 7,
        ['B'] = 1 << 12,          ['s'] = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8,
        ['p'] = 1 << 5 | 1 << 10, ['P'] = 1 << 3 | 1 << 14 | 1 << 15,
        ['e'] = 1 << 4 | 1 << 5,  ['r'] = 1 << 5,
        ['t'] = 1 << 4,           ['d'] = 1 << 6 | 1 << 10,
        ['c'] = 1 << 5,           ['m'] = 1 << 5 | 1 << 10,
        ['v'] = 1 << 2,           ['j'] = 1 << 4,
        ['w'] = 1 << 4,           ['f'] = 1 << 2,
        ['b'] = 1 << 2,           ['C'] = 1 << 4,
        ['S'] = 1 << 7,
    };
    const uint8_t *at = text, *end = text + size;
    unsigned found = 0, classes = 0;
    while (at < end) {
        uint8_t class = CLASS[*at];
        if (!(class & NAME)) {
            classes |= class;
            at++;
            continue;
        }
        const uint8_t *start = at;
        while (at < end && CLASS[*at] & NAME) {
            at++;
        }
        size_t length = (size_t)(at - start);
        if (length < 16 && sizes[*start] & (uint32_t)1 << length) {
            found |= mentioned(start, length);
        }
    }
    return found | (classes & CONTROL ? SWX_SCAN_CONTROL : 0);
}

/* A `.` that could be the command: only asked for when the parser did not get to know. */
static bool maybe_dot(const uint8_t *text, size_t size)
{
    const uint8_t *at = text, *end = text + size;
    while ((at = memchr(at, '.', (size_t)(end - at)))) {
        if ((at == text || CLASS[at[-1]] & (BLANK | META)) && at + 1 < end && CLASS[at[1]] & BLANK) {
            return true;
        }
        at++;
    }
    return false;
}

/* Sets body_start and body_size. */
static void trim(const uint8_t *text, size_t size, swx_scan *out)
{
    size_t start = 0, end = size;
    while (start < size) {
        bool joined = start + 1 < size && text[start] == '\\' && text[start + 1] == '\n';
        if (!joined && !(CLASS[text[start]] & BLANK) && text[start] != '\n') {
            break;
        }
        start += joined ? 2 : 1;
    }
    /* A blank line may be the end of a here-document whose delimiter is blank: then only the last newline goes. */
    bool documents = memmem(text, size, "<<", 2) != NULL;
    for (bool first = true; first || !documents; first = false) {
        size_t at = end;
        while (!documents && at > start && CLASS[text[at - 1]] & BLANK) {
            at--;
        }
        if (at == start || text[at - 1] != '\n' || odd_backslashes(text + start, text + at - 1)) {
            break;
        }
        end = at - 1;
    }
    out->body_start = start;
    out->body_size = end - start;
}

static void measure_lines(const uint8_t *text, swx_scan *out)
{
    const uint8_t *at = text + out->body_start, *end = at + out->body_size;
    while (at < end) {
        const uint8_t *found = memchr(at, '\n', (size_t)(end - at));
        size_t size = (size_t)((found ? found : end) - at) + 1;
        out->longest = size > out->longest ? size : out->longest;
        out->flags |= found ? SWX_SCAN_MULTILINE : 0;
        at = found ? found + 1 : end;
    }
    out->flags |= out->longest > SWX_LINE_MAX ? SWX_SCAN_LONG_LINE : 0;
}

static void parse(const uint8_t *text, size_t size, swx_scan *out)
{
    parser p = { .at = text, .end = text + size };
    size_t count = 0;
    bool fine = list(&p, &count) && at_end(&p) && !p.pending;
    out->verdict = !fine ? SWX_UNSURE : count ? SWX_COMPLETE : SWX_EMPTY;
    out->stop = (size_t)(p.at - text);
    out->flags |= p.dot ? SWX_SCAN_PARSE_STATE : 0;
    out->flags |= p.background ? SWX_SCAN_BACKGROUND : 0;
    out->flags |= p.unknown || !fine ? SWX_SCAN_UNKNOWN : 0;
}

void swx_command_scan(const uint8_t *text, size_t size, swx_scan *out)
{
    static const uint8_t nothing[1] = { 0 };
    text = size ? text : nothing;
    *out = (swx_scan){ .verdict = SWX_UNSURE };
    trim(text, size, out);
    measure_lines(text, out);
    unsigned found = mentions(text, size);
    if (found & SEEN_SET && found & SEEN_EDITOR) {
        out->flags |= SWX_SCAN_EDITING;
    }
    out->flags |= found & ~(unsigned)(SEEN_SET | SEEN_EDITOR);
    if (out->flags & SWX_SCAN_CONTROL && memchr(text, 0, size)) {
        out->flags |= SWX_SCAN_NUL;
    } else {
        parse(text, size, out);
        out->verdict = out->body_size ? out->verdict : SWX_EMPTY;
    }
    if (out->verdict == SWX_UNSURE) {
        const uint8_t *start = text + out->body_start, *end = start + out->body_size;
        /* in the last line: no here-document has begun there, or it would be at the end */
        const uint8_t *stop = text + out->stop;
        out->flags |= odd_backslashes(start, end) ? SWX_SCAN_BACKSLASH_END : 0;
        out->flags |= stop < end && !memchr(stop, '\n', (size_t)(end - stop)) ? SWX_SCAN_LINE_END : 0;
        out->flags |= memchr(text, '&', size) ? SWX_SCAN_BACKGROUND : 0;
        out->flags |= maybe_dot(text, size) ? SWX_SCAN_PARSE_STATE : 0;
    }
}

/* ---- delivery ---- */

swx_delivery swx_command_delivery(const swx_scan *scan, bool accepted)
{
    if (scan->flags & SWX_SCAN_NUL) {
        return SWX_DELIVERY_REFUSE;
    }
    if (scan->verdict == SWX_EMPTY) {
        return SWX_DELIVERY_NONE;
    }
    if (scan->flags & SWX_SCAN_BACKSLASH_END && !(scan->flags & SWX_SCAN_LINE_END) && !accepted) {
        return SWX_DELIVERY_DOCUMENT; /* bash accepts it but for a here-document that the text's end ends */
    }
    if (scan->flags & SWX_SCAN_BACKSLASH_END || (scan->verdict != SWX_COMPLETE && !accepted)) {
        return SWX_DELIVERY_EVAL;
    }
    const unsigned late = scan->flags & (SWX_SCAN_PARSE_STATE | SWX_SCAN_EDITING);
    if (scan->flags & SWX_SCAN_MULTILINE && late == SWX_SCAN_PARSE_STATE) {
        return SWX_DELIVERY_EVAL;
    }
    if (scan->flags & (SWX_SCAN_CONTROL | SWX_SCAN_LONG_LINE)) {
        return SWX_DELIVERY_RAW;
    }
    return scan->flags & SWX_SCAN_MULTILINE ? SWX_DELIVERY_GROUP : SWX_DELIVERY_PLAIN;
}

static bool names(const uint8_t *text, size_t size, const char *part)
{
    return memmem(text, size, part, strlen(part)) != NULL;
}

unsigned swx_command_spoils(const swx_scan *scan, const uint8_t *text, size_t size)
{
    unsigned spoils = scan->flags & SWX_SCAN_CHLD ? SWX_SPOILS_GROUP : 0;
    if (scan->flags & SWX_SCAN_PARSE_STATE) {
        spoils |= memchr(text, '{', size) && (names(text, size, "alias") || names(text, size, "BASH_ALIASES"))
                      ? SWX_SPOILS_GROUP | SWX_SPOILS_BRACE
                      : 0;
        spoils |= names(text, size, "eval") && names(text, size, "enable") ? SWX_SPOILS_EVAL : 0;
    }
    return spoils;
}

swx_delivery swx_command_unspoilt(const swx_scan *scan, swx_delivery way, unsigned spoils)
{
    bool group = way == SWX_DELIVERY_GROUP || way == SWX_DELIVERY_RAW;
    if (group && (spoils & SWX_SPOILS_GROUP) && !(scan->flags & SWX_SCAN_EDITING)) {
        way = spoils & SWX_SPOILS_BRACE ? SWX_DELIVERY_EVAL : SWX_DELIVERY_TOGETHER;
    }
    return (spoils & SWX_SPOILS_EVAL) && way >= SWX_DELIVERY_EVAL ? SWX_DELIVERY_SOURCE : way;
}

enum { PIECE = 4000 /* bytes of a typed line before its end; the longest escape and `'\` newline fit above */ };

size_t swx_command_bound(swx_delivery way, size_t size)
{
    if (size > SIZE_MAX / 8) {
        return SIZE_MAX;
    }
    size += 4; /* the group's */
    return way >= SWX_DELIVERY_EVAL ? 4 * size + 4 * size / (PIECE - 16) * 5 + 64 : size + 1;
}

/* Writes one byte of a $'...' piece, returns the bytes written, at most 4. */
static size_t escape(uint8_t c, uint8_t *out)
{
    if (c >= 0x20 && c < 0x7f && c != '\\' && c != '\'') {
        out[0] = c;
        return 1;
    }
    out[0] = '\\';
    if (c == '\n' || c == '\t' || c == '\\' || c == '\'') {
        out[1] = c == '\n' ? 'n' : c == '\t' ? 't' : c;
        return 2;
    }
    out[1] = (uint8_t)('0' + (c >> 6));
    out[2] = (uint8_t)('0' + (c >> 3 & 7));
    out[3] = (uint8_t)('0' + (c & 7));
    return 4;
}

static swx_status deliver_eval(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out)
{
    uint8_t line[PIECE + 16];
    /* Quoted, because an alias may have any name. */
    const char *start = way == SWX_DELIVERY_SOURCE ? "\\builtin source <(\\builtin printf %s $'"
                        : size && text[0] == '-'   ? "\\builtin eval -- $'"
                                                   : "\\builtin eval $'";
    const char *end = way == SWX_DELIVERY_SOURCE ? "')\n" : "'\n";
    size_t used = strlen(start), at = 0;
    swx_status status = SWX_OK;
    /* At the end of an eval a backslash that quotes nothing makes bash 5.2 go on reading at the terminal, with a stale
     * prompt.  Twice it is one; in a here-document it is text, and a newline ends its line. */
    const char *ending = way == SWX_DELIVERY_SOURCE || !odd_backslashes(text, text + size) ? ""
                         : way == SWX_DELIVERY_DOCUMENT                                    ? "\\n"
                                                                                           : "\\\\";
    memcpy(line, start, used);
    while (status == SWX_OK) {
        while (at < size && used < PIECE) {
            used += escape(text[at++], line + used);
        }
        bool last = at == size;
        if (last) {
            memcpy(line + used, ending, strlen(ending));
            used += strlen(ending);
        }
        const char *rest = last ? end : "'\\\n";
        memcpy(line + used, rest, strlen(rest));
        status = swx_buf_append(out, line, used + strlen(rest));
        if (last) {
            break;
        }
        memcpy(line, "$'", 2);
        used = 2;
    }
    return status;
}

static swx_status deliver_body(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out)
{
    swx_scan scan = { 0 };
    trim(text, size, &scan);
    bool group = way != SWX_DELIVERY_PLAIN;
    swx_status status = group ? swx_buf_append(out, "{\n", 2) : SWX_OK;
    if (status == SWX_OK) {
        status = swx_buf_append(out, text + scan.body_start, scan.body_size);
    }
    if (status == SWX_OK) {
        status = group ? swx_buf_append(out, "\n}\n", 3) : swx_buf_append(out, "\n", 1);
    }
    return status;
}

static swx_status deliver_together(const uint8_t *text, size_t size, swx_buf *out)
{
    swx_buf group;
    swx_buf_init(&group, out->limit);
    swx_status status = deliver_body(SWX_DELIVERY_GROUP, text, size, &group);
    status = status == SWX_OK ? deliver_eval(SWX_DELIVERY_EVAL, group.data, group.size - 1, out) : status;
    swx_buf_free(&group);
    return status;
}

swx_status swx_command_encode(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out)
{
    if (way < SWX_DELIVERY_PLAIN || way > SWX_DELIVERY_SOURCE || (size && memchr(text, 0, size))) {
        return SWX_EINVAL;
    }
    if (swx_buf_dropped(out) || swx_command_bound(way, size) > out->limit - out->size) {
        return SWX_ELIMIT;
    }
    static const uint8_t nothing[1] = { 0 };
    text = size ? text : nothing;
    size_t held = out->size;
    uint64_t total = out->total;
    swx_status status = way == SWX_DELIVERY_TOGETHER ? deliver_together(text, size, out)
                        : way >= SWX_DELIVERY_EVAL   ? deliver_eval(way, text, size, out)
                                                     : deliver_body(way, text, size, out);
    if (status != SWX_OK) {
        out->size = held;
        out->total = total;
    }
    return status;
}
