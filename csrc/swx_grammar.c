/* A recursive reader of the part of bash's grammar that people and agents write most.
 *
 * Each function moves `at` past its construct and returns true, or returns false as soon as anything is not certainly
 * right.  False ends the whole reading, so nothing is ever undone, and a function may leave anything behind then. */
#include "swx_grammar.h"

#include <string.h>

const uint8_t swx_class[256] = {
    [0x00 ... 0x08] = CONTROL,
    [0x0b ... 0x1f] = CONTROL,
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
    ['0' ... '9'] = NAME | DIGIT,
    ['A' ... 'Z'] = NAME,
    ['_'] = NAME,
    ['a' ... 'z'] = NAME,
};

/* Nesting of commands and of ${ }; one level costs less than 1 KiB of stack. */
#define DEPTH 48

typedef struct {
    const uint8_t *start;
    size_t size;
    bool literal; /* no quotes, no expansions */
} word;

typedef struct {
    const uint8_t *at, *end;
    unsigned depth;
    unsigned substitutions; /* $( ) around us */
    bool pending;           /* the body of a here-document begins after the next newline */
    bool dashed;            /* it is one of <<- : leading tabs do not count */
    word delimiter;         /* of it; literal: backslash-newline joins its lines */
    word function;          /* the name of the last one that is defined */
    unsigned flags;         /* SWX_SCAN_... */
} reader;

/* ---- characters ---- */

static bool at_end(const reader *r) { return r->at == r->end; }

/* The byte `ahead` of the current one; NUL past the end. */
static uint8_t peek(const reader *r, size_t ahead) { return (size_t)(r->end - r->at) > ahead ? r->at[ahead] : 0; }

static bool is_name(uint8_t c) { return swx_class[c] & NAME; }
static bool is_digit(uint8_t c) { return swx_class[c] & DIGIT; }
static bool is_blank(uint8_t c) { return swx_class[c] & BLANK; }
static bool is_one_of(uint8_t c, const char *set) { return c && strchr(set, c); }

/* A word cannot go on here. */
static bool at_boundary(const reader *r) { return at_end(r) || swx_class[*r->at] & (BLANK | META); }

static bool at_angle(const reader *r) { return peek(r, 0) == '<' || peek(r, 0) == '>'; }

/* At <( or >( , with which a word may begin. */
static bool at_process(const reader *r) { return at_angle(r) && peek(r, 1) == '('; }

static bool at_word(const reader *r) { return !at_boundary(r) || at_process(r); }

/* Blanks, joined lines and a comment, up to the next token or newline. */
static bool blanks(reader *r)
{
    for (;; r->at++) {
        if (peek(r, 0) == '\\' && peek(r, 1) == '\n') {
            /* Elsewhere than between blanks it could join two halves of one token. */
            bool apart = is_blank(r->at[-1]) || r->at[-1] == '\n';
            if (!apart || r->pending || r->end - r->at == 2) {
                return false;
            }
            r->at++;
        } else if (peek(r, 0) == '#') {
            const uint8_t *newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
            r->at = newline ? newline : r->end;
            return true;
        } else if (!is_blank(peek(r, 0))) {
            return true;
        }
    }
}

/* ---- here-documents ---- */

/* The body, up to and with the line that is its delimiter. */
static bool heredoc_body(reader *r)
{
    const word *delimiter = &r->delimiter;
    while (!at_end(r)) {
        const uint8_t *line = r->at;
        const uint8_t *newline = memchr(line, '\n', (size_t)(r->end - line));
        const uint8_t *stop = newline ? newline : r->end;
        r->at = newline ? newline + 1 : r->end;
        while (r->dashed && line < stop && *line == '\t') {
            line++;
        }
        size_t size = (size_t)(stop - line);
        if (size && delimiter->literal && stop[-1] == '\\') { /* joined lines may hold the delimiter or hide it */
            r->at = r->end;
            return false;
        }
        if (size >= delimiter->size && memcmp(line, delimiter->start, delimiter->size) == 0) {
            if (size == delimiter->size) {
                return true;
            }
            if (r->substitutions) { /* bash ends the body at `EOF)` there */
                return false;
            }
        }
    }
    return false;
}

/* The delimiter after << : WORD, 'WORD' or "WORD" of harmless characters; a digit first may be a redirection's. */
static bool heredoc_start(reader *r)
{
    uint8_t quote = peek(r, 0);
    bool quoted = quote == '\'' || quote == '"';
    r->at += quoted;
    const uint8_t *start = r->at;
    if (r->pending || is_digit(peek(r, 0))) {
        return false;
    }
    while (is_name(peek(r, 0)) || is_one_of(peek(r, 0), "-.")) {
        r->at++;
    }
    r->delimiter = (word){ start, (size_t)(r->at - start), !quoted };
    r->pending = true;
    if (quoted && peek(r, 0) != quote) {
        return false;
    }
    r->at += quoted;
    return r->delimiter.size && at_boundary(r);
}

/* Any number of blanks, comments and newlines, with the here-documents that begin after the first of these. */
static bool newlines(reader *r)
{
    while (blanks(r)) {
        if (peek(r, 0) != '\n') {
            return true;
        }
        r->at++;
        if (r->pending && !heredoc_body(r)) {
            return false;
        }
        r->pending = false;
    }
    return false;
}

/* ---- quotes and expansions ---- */

static bool list(reader *r);
static bool command(reader *r);
static bool dollar(reader *r, bool in_quotes);

/* Text up to `close` in which a backslash takes the next byte: $'...' and `...`, and "..." with its expansions. */
static bool quoted(reader *r, uint8_t close)
{
    bool fine = true;
    r->at++;
    while (fine && !at_end(r)) {
        uint8_t c = *r->at;
        if (c == close) {
            r->at++;
            return true;
        }
        if (c == '\\') {
            fine = r->end - r->at > 1;
            r->at += fine ? 2 : 0;
        } else if (close == '"' && (c == '$' || c == '`')) {
            fine = c == '$' ? dollar(r, true) : quoted(r, '`');
        } else {
            r->at++;
        }
    }
    return false;
}

/* Reads a construct that begins with a special byte. */
static bool special(reader *r, bool in_quotes)
{
    uint8_t c = *r->at, next = peek(r, 1);
    if (c == '$') {
        return dollar(r, in_quotes);
    }
    if (c == '"' || c == '`') {
        return quoted(r, c);
    }
    if (c == '\\') {
        bool fine = next && next != '\n';
        r->at += fine ? 2 : 0;
        return fine;
    }
    const uint8_t *close = memchr(r->at + 1, '\'', (size_t)(r->end - r->at - 1));
    r->at = close ? close + 1 : r->at;
    return close && !in_quotes; /* within "${...}" the operator decides whether it quotes */
}

/* $( ) <( ) >( ); `at` is after the opening parenthesis. */
static bool substitution(reader *r)
{
    bool pending = r->pending;
    r->substitutions++;
    if (!newlines(r) || (peek(r, 0) != ')' && !list(r)) || peek(r, 0) != ')' || r->pending != pending) {
        return false;
    }
    r->at++;
    r->substitutions--;
    return true;
}

/* ${...}; `at` is after the brace.  What is in it is bash's business when it runs, but for where it ends. */
static bool braces(reader *r, bool in_quotes)
{
    if (r->depth++ == DEPTH || !(is_name(peek(r, 0)) || is_one_of(peek(r, 0), "@*#?-$!"))) {
        return false;
    }
    while (peek(r, 0) != '}') {
        if (at_end(r) || *r->at == '\n' || at_process(r)) {
            return false;
        }
        if (!(swx_class[*r->at] & SPECIAL)) {
            r->at++;
        } else if (!special(r, in_quotes)) {
            return false;
        }
    }
    r->at++;
    r->depth--;
    return true;
}

/* $(( )) and (( )) of numbers, names and operators; `at` is after the opening parentheses. */
static bool arithmetic(reader *r)
{
    for (size_t open = 2; open; r->at++) {
        uint8_t c = peek(r, 0), next = peek(r, 1);
        if (c == '(') {
            open++;
        } else if ((c == '<' || c == '>') && next == '(') {
            return false;
        } else if (c == ')') {
            open--;
            if (open == 1 && next != ')') { /* a subshell in a substitution */
                return false;
            }
        } else if (!is_name(c) && !is_one_of(c, " +-*/%<>=!&|^~?:,") && !(c == '$' && is_name(next))) {
            return false;
        }
    }
    return true;
}

/* Reads a construct that begins with a dollar. */
static bool dollar(reader *r, bool in_quotes)
{
    uint8_t c = peek(r, 1);
    r->at++;
    switch (c) {
    case '(': r->at++; return peek(r, 0) == '(' ? r->at++ && arithmetic(r) : substitution(r);
    case '{': r->at++; return braces(r, in_quotes);
    case '[': return false;               /* old arithmetic */
    case '\\': return peek(r, 1) != '\n'; /* the next line could complete the expansion */
    case '$': r->at++; return true;
    case '\'':
    case '"': return in_quotes || quoted(r, c);
    default: return true;
    }
}

/* ---- words ---- */

/* The next word; false, too, when there is none. */
static bool read_word(reader *r, word *w)
{
    if (!blanks(r) || !at_word(r)) {
        return false;
    }
    *w = (word){ .start = r->at, .literal = !at_process(r) };
    if (at_process(r)) {
        r->at += 2;
        if (!substitution(r)) {
            return false;
        }
    }
    while (!at_boundary(r)) {
        if (!(swx_class[*r->at] & SPECIAL)) {
            r->at++;
        } else {
            w->literal = false;
            if (!special(r, false)) {
                return false;
            }
        }
    }
    w->size = (size_t)(r->at - w->start);
    /* where a here-document waits for a newline, one within a word would begin it or not */
    return !at_process(r) && (!r->pending || !memchr(w->start, '\n', w->size));
}

static bool is_word(const word *w, const char *text)
{
    return w->literal && *w->start == (uint8_t)*text && w->size == strlen(text) && memcmp(w->start, text, w->size) == 0;
}

static bool is_in(const word *w, const char *const *set)
{
    while (*set && !is_word(w, *set)) {
        set++;
    }
    return *set;
}

/* Bytes of the name that a word begins with. */
static size_t name_size(const word *w)
{
    size_t size = 0;
    while (size < w->size && is_name(w->start[size]) && !is_digit(*w->start)) {
        size++;
    }
    return size;
}

/* The byte after the name at a word's beginning: `=`, `+` of +=, `[`; NUL for all others. */
static uint8_t byte_after_name(const word *w)
{
    size_t size = name_size(w);
    uint8_t c = size && size < w->size ? w->start[size] : 0;
    bool appends = c == '+' && size + 1 < w->size && w->start[size + 1] == '=';
    return c == '=' || c == '[' || appends ? c : 0;
}

/* The given keyword, whole and unquoted. */
static bool keyword(reader *r, const char *text)
{
    const uint8_t *start = r->at;
    while (*text && peek(r, 0) == (uint8_t)*text) {
        r->at++;
        text++;
    }
    if (!*text && at_boundary(r)) {
        return true;
    }
    r->at = start;
    return false;
}

/* ---- redirections ---- */

static bool at_redirection(const reader *r)
{
    size_t digits = 0;
    while (is_digit(peek(r, digits))) {
        digits++;
    }
    uint8_t c = peek(r, digits);
    bool angle = c == '<' || c == '>';
    return angle ? peek(r, digits + 1) != '(' : c == '&' && !digits && peek(r, 1) == '>';
}

static bool redirection(reader *r)
{
    word w;
    bool duplicates = false;
    while (is_digit(*r->at)) {
        r->at++;
    }
    uint8_t c = *r->at++;
    if (c == '&') {
        r->at += peek(r, 1) == '>' ? 2 : 1;
    } else if (c == '<' && peek(r, 0) == '<') {
        r->at++;
        if (peek(r, 0) != '<') {
            r->dashed = peek(r, 0) == '-';
            r->at += r->dashed;
            return blanks(r) && heredoc_start(r);
        }
        r->at++;
    } else if (peek(r, 0) == '&') {
        r->at++;
        duplicates = true;
    } else if (peek(r, 0) == '>' || (c == '>' && peek(r, 0) == '|')) {
        r->at++;
    }
    if (!read_word(r, &w) || at_angle(r)) { /* >2>x : the number belongs to the second, and the first has no target */
        return false;
    }
    return !duplicates || *w.start != '-' || w.size == 1; /* >&-x closes, and x is another word */
}

/* ---- [[ ]] ---- */

static bool condition_word(reader *r, word *w)
{
    return blanks(r) && !at_angle(r) && read_word(r, w) && !is_word(w, "]]") && is_blank(peek(r, 0));
}

/* One test, perhaps with a `!`: an operator and a word, or two words with an operator between them. */
static bool condition(reader *r)
{
    static const char *const operators[] = { "=",   "==",  "!=",  "-eq", "-ne", "-lt", "-le",
                                             "-gt", "-ge", "-nt", "-ot", "-ef", NULL };
    word w;
    if (!is_blank(peek(r, 0)) || !condition_word(r, &w) || (is_word(&w, "!") && !condition_word(r, &w))) {
        return false;
    }
    bool unary = w.literal && w.size == 2 && *w.start == '-' && is_one_of(w.start[1], "abcdefghknoprstuvwxzGLNORS");
    if (!unary && !(condition_word(r, &w) && is_in(&w, operators))) {
        return false;
    }
    return condition_word(r, &w) && blanks(r) && keyword(r, "]]");
}

/* ---- commands ---- */

static bool if_command(reader *r)
{
    do {
        if (!list(r) || !keyword(r, "then") || !list(r)) {
            return false;
        }
    } while (keyword(r, "elif"));
    return (!keyword(r, "else") || list(r)) && keyword(r, "fi");
}

static bool do_group(reader *r) { return keyword(r, "do") && list(r) && keyword(r, "done"); }

static bool for_command(reader *r)
{
    word w;
    if (!read_word(r, &w) || name_size(&w) != w.size || !blanks(r)) {
        return false;
    }
    if (keyword(r, "in")) {
        while (blanks(r) && at_word(r)) {
            if (!read_word(r, &w)) {
                return false;
            }
        }
    }
    if (peek(r, 0) == ';') {
        r->at++;
    } else if (peek(r, 0) != '\n') {
        return false;
    }
    return newlines(r) && do_group(r);
}

static bool subshell(reader *r)
{
    r->at++;
    if (peek(r, 0) == '(') {
        r->at++;
        return arithmetic(r);
    }
    return list(r) && peek(r, 0) == ')' && r->at++;
}

/* Notes what matters about the name of a command. */
static void note_name(reader *r, const word *w)
{
    static const char *const known[] = { "unset",   "exec",  "set",    "cd",       "echo",  "printf", "test",
                                         "[",       ":",     "true",   "false",    "sleep", "trap",   "declare",
                                         "typeset", "local", "export", "readonly", NULL };
    if (is_word(w, ".")) {
        r->flags |= SWX_SCAN_PARSE_STATE;
    }
    bool defined = w->size == r->function.size && memcmp(w->start, r->function.start, w->size) == 0;
    if (!r->substitutions && !defined && !is_in(w, known)) {
        r->flags |= SWX_SCAN_UNKNOWN;
    }
}

/* name() { } and name() ( ); `at` is after the name. */
static bool function(reader *r, const word *name)
{
    if (name_size(name) != name->size || peek(r, 1) != ')') {
        return false;
    }
    r->at += 2;
    r->function = *name;
    return newlines(r) && (peek(r, 0) == '(' || (peek(r, 0) == '{' && (is_blank(peek(r, 1)) || peek(r, 1) == '\n'))) &&
           command(r);
}

/* The values of name=( ), without indices, on one line; `at` is after the word before them. */
static bool assigned_list(reader *r, const word *before)
{
    word w;
    if (memchr(before->start, '=', before->size) != r->at++ - 1) {
        return false;
    }
    while (blanks(r) && at_word(r)) {
        if (!read_word(r, &w) || *w.start == '[' || byte_after_name(&w) == '[') {
            return false;
        }
    }
    return peek(r, 0) == ')' && r->at++ && at_boundary(r);
}

/* Assignments, words and redirections in any order. */
static bool simple(reader *r)
{
    static const char *const keywords[] = { "if",   "then", "elif",   "else", "fi",     "while", "until", "do",
                                            "done", "for",  "case",   "esac", "select", "in",    "time",  "function",
                                            "{",    "}",    "coproc", "[[",   "]]",     "!",     NULL };
    const uint8_t *start = r->at;
    bool named = false;
    word w;
    while (blanks(r)) {
        if (at_redirection(r)) {
            if (!redirection(r)) {
                return false;
            }
            continue;
        }
        if (!at_word(r)) {
            return r->at != start && peek(r, 0) != '(';
        }
        if (!read_word(r, &w) || (at_angle(r) && *w.start == '{')) { /* {name}> is a redirection */
            return false;
        }
        if (named) {
            continue;
        }
        uint8_t next = byte_after_name(&w);
        if (next == '[' || is_in(&w, keywords)) {
            return false;
        }
        if (next == '=' || next == '+') {
            if (peek(r, 0) == '(' && !assigned_list(r, &w)) {
                return false;
            }
        } else if (peek(r, 0) == '(') {
            return w.start == start && function(r, &w);
        } else {
            named = true;
            note_name(r, &w);
        }
    }
    return false;
}

static bool compound_or_simple(reader *r)
{
    if (peek(r, 0) == '(') {
        return subshell(r);
    }
    if (keyword(r, "if")) {
        return if_command(r);
    }
    if (keyword(r, "while") || keyword(r, "until")) {
        return list(r) && do_group(r);
    }
    if (keyword(r, "for")) {
        return for_command(r);
    }
    if (keyword(r, "{")) {
        return list(r) && keyword(r, "}");
    }
    if (keyword(r, "[[")) {
        return condition(r);
    }
    return simple(r);
}

/* One command with its redirections; `at` is on its first byte. */
static bool command(reader *r)
{
    if (r->depth++ == DEPTH || !compound_or_simple(r)) {
        return false;
    }
    r->depth--;
    while (blanks(r)) {
        if (!at_redirection(r)) {
            return true;
        }
        if (!redirection(r)) {
            return false;
        }
    }
    return false;
}

/* `!` or `time`, and the beginning of a command that is no option, no other `!` and no redirection. */
static bool prefix(reader *r)
{
    if (!keyword(r, "!") && !keyword(r, "time")) {
        return true;
    }
    return is_blank(peek(r, 0)) && blanks(r) && (is_name(peek(r, 0)) || is_one_of(peek(r, 0), "([{./$\"'"));
}

/* Commands joined by | and |&, and pipelines joined by && and ||. */
static bool pipelines(reader *r)
{
    for (bool begins = true; (!begins || prefix(r)) && command(r) && blanks(r);) {
        uint8_t c = peek(r, 0), next = peek(r, 1);
        begins = (c == '&' || c == '|') && next == c;
        if (!begins && c != '|') {
            return true;
        }
        r->at += begins || next == '&' ? 2 : 1;
        if (!newlines(r)) {
            return false;
        }
    }
    return false;
}

/* At a word that ends the list around it: looked for with a copy of the reader. */
static bool at_closer(reader r)
{
    return keyword(&r, "then") || keyword(&r, "elif") || keyword(&r, "else") || keyword(&r, "fi") ||
           keyword(&r, "do") || keyword(&r, "done") || keyword(&r, "}");
}

/* Commands, at least one, up to the end, a closing word after `;`, `&` or a newline, or `)`, none of these consumed. */
static bool list(reader *r)
{
    if (!newlines(r)) {
        return false;
    }
    do {
        if (!pipelines(r)) {
            return false;
        }
        uint8_t c = peek(r, 0);
        if (c != ';' && c != '&' && c != '\n') {
            return at_end(r) || c == ')';
        }
        if (c == ';' && peek(r, 1) == '&') { /* the end of a case's clause */
            return false;
        }
        r->flags |= c == '&' ? SWX_SCAN_BACKGROUND : 0;
        r->at += c != '\n';
        if (!newlines(r)) {
            return false;
        }
    } while (!at_end(r) && *r->at != ')' && !at_closer(*r));
    return true;
}

swx_verdict swx_grammar_read(const uint8_t *text, size_t size, unsigned *flags, size_t *stop)
{
    reader r = { .at = text, .end = text + size };
    bool fine = newlines(&r);
    bool empty = fine && at_end(&r);
    bool complete = !empty && fine && list(&r) && at_end(&r) && !r.pending;
    *flags |= empty || complete ? r.flags : 0;
    *stop = (size_t)(r.at - text);
    return empty ? SWX_EMPTY : complete ? SWX_COMPLETE : SWX_UNSURE;
}

size_t swx_grammar_first(const uint8_t *text, size_t size)
{
    reader r = { .at = text, .end = text + size };
    bool fine = pipelines(&r) && (!r.pending || (!at_end(&r) && *r.at++ == '\n' && heredoc_body(&r)));
    return fine ? (size_t)(r.at - text) : 0;
}
