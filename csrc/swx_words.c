/* Characters, blanks, here-documents, quotes and expansions, words, redirections. */
#include "swx_grammar.h"

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

/* ---- characters ---- */

/* Blanks, joined lines and a comment, up to the next token or newline. */
bool swx_parse_blanks(parser *p)
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
        } else if (!(swx_class[c] & BLANK)) {
            return true;
        }
    }
    return true;
}

/* ---- here-documents ---- */

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
bool swx_parse_newlines(parser *p)
{
    while (swx_parse_blanks(p)) {
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
    if (swx_class[*start] & DIGIT && at_angle(p)) {
        return false; /* may be the number of the next redirection */
    }
    p->heredocs[p->pending++] = (heredoc){ start, size, quoted, dashed };
    return at_boundary(p);
}

/* ---- quotes and expansions ---- */

static bool dollar(parser *p, bool in_quotes);

/* Text between two points of one token may hold a newline only when no here-document waits for one. */
static bool one_piece(const parser *p, const uint8_t *start)
{
    return !p->pending || !memchr(start, '\n', (size_t)(p->at - start));
}

bool swx_parse_single_quotes(parser *p)
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

bool swx_parse_double_quotes(parser *p)
{
    const uint8_t *start = ++p->at;
    while (!at_end(p)) {
        uint8_t c = *p->at;
        if (!(swx_class[c] & SPECIAL) || c == '\'') {
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
    if (!swx_parse_list(p, &count) || peek(p, 0) != ')' || p->pending != pending) {
        return false;
    }
    p->at++;
    p->substitutions--;
    p->frozen = frozen;
    return ascend(p);
}

/* An expansion where bash only counts parentheses (and skips quotes): no other reading may be possible. */
bool swx_parse_counted_dollar(parser *p)
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
bool swx_parse_arithmetic(parser *p, size_t *semicolons)
{
    const uint8_t *start = p->at;
    size_t open = 0;
    *semicolons = 0;
    while (!at_end(p)) {
        uint8_t c = *p->at;
        if (c == '$' || c == '"') {
            if (!(c == '$' ? swx_parse_counted_dollar(p) : swx_parse_double_quotes(p))) {
                return false;
            }
            continue;
        }
        if (swx_class[c] & SPECIAL || opens_process(p)) {
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
    if (!swx_parse_counted_dollar(p)) {
        return false;
    }
    for (const uint8_t *at = start; at < p->at; at++) {
        quotes |= swx_class[*at] & SPECIAL && *at != '$';
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
            if (!(c == '$' ? index_dollar(p) : c == '"' ? swx_parse_double_quotes(p) : swx_parse_single_quotes(p))) {
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
        bool digits = swx_class[c] & DIGIT;
        while (is_name(peek(p, 0)) && (!digits || swx_class[*p->at] & DIGIT)) {
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
        if (!(swx_class[c] & SPECIAL)) {
            p->at++;
        } else if (c == '\\') {
            fine = peek(p, 1) && peek(p, 1) != '\n';
            p->at += fine ? 2 : 0;
        } else if (c == '\'') { /* whether it quotes inside of double quotes depends on the operator */
            fine = !in_quotes && swx_parse_single_quotes(p);
        } else {
            fine = c == '"' ? swx_parse_double_quotes(p) : c == '$' ? dollar(p, in_quotes) : escaped_until(p, '`');
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
            return descend(p) && swx_parse_arithmetic(p, &semicolons) && ascend(p);
        }
        return substitution(p);
    case '{': p->at += 2; return braces(p, in_quotes);
    case '[': /* old arithmetic */ return false;
    case '\\': p->at++; return peek(p, 1) != '\n'; /* the next line could complete the expansion */
    case '$': p->at += 2; return true;
    case '\'': p->at++; return in_quotes || escaped_until(p, '\'');
    case '"': p->at++; return in_quotes || swx_parse_double_quotes(p);
    default: p->at++; return true;
    }
}

/* ---- words ---- */

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
    while (swx_parse_newlines(p)) {
        if (peek(p, 0) == ')') {
            p->at++;
            p->frozen = frozen;
            return ascend(p) && at_boundary(p);
        }
        if (at_end(p) || swx_class[*p->at] & META) {
            return false;
        }
        if (*p->at == '[') {
            if (!subscript(p) || peek(p, 0) != '=') {
                return false;
            }
            p->at++;
        }
        if (!at_boundary(p) && !swx_parse_word(p, ELEMENT, &w)) {
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
bool swx_parse_word(parser *p, word_kind kind, word *w)
{
    *w = (word){ .start = p->at, .literal = true };
    if (kind != PLAIN && is_name_start(*p->at) && !assignment(p, kind, w)) {
        return false;
    }
    if (swx_class[peek(p, 0)] & META && p->at == w->start) { /* <( or >( */
        w->literal = false;
        p->at += 2;
        if (!substitution(p)) {
            return false;
        }
    }
    for (;;) {
        while (!at_end(p) && !(swx_class[*p->at] & (BLANK | META | SPECIAL))) {
            p->at++;
        }
        if (at_boundary(p)) {
            break;
        }
        uint8_t c = *p->at;
        bool fine = true;
        if (joins(p)) { /* `word\` newline blank ends the word; otherwise it goes on and is no keyword to us */
            uint8_t next = peek(p, 2);
            if (p->pending || p->frozen || !next || (kind != PLAIN && !(swx_class[next] & BLANK))) {
                return false;
            }
            if (swx_class[next] & BLANK) {
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
        case '\'': fine = swx_parse_single_quotes(p); break;
        case '"': fine = swx_parse_double_quotes(p); break;
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

/* The given keyword, whole and unquoted. */
bool swx_parse_keyword(parser *p, const char *text)
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

/* ---- redirections ---- */

/* `at` is on < or > or &>. */
bool swx_parse_redirection(parser *p)
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
            return !joins(p) && swx_parse_blanks(p) && heredoc_start(p, dashed);
        }
        p->at++;
    } else if (peek(p, 0) == '&') {
        p->at++;
        duplicates = true;
    } else if (peek(p, 0) == '>' || (c == '>' && peek(p, 0) == '|')) {
        p->at++;
    }
    if (joins(p) || !swx_parse_blanks(p) || !at_word(p) || !swx_parse_word(p, PLAIN, &w)) {
        return false;
    }
    if (at_angle(p) && (all_digits(&w) || w.start[0] == '{')) {
        return false; /* >2>x : the number belongs to the second, and the first has no target */
    }
    return !duplicates || w.start[0] != '-' || w.size == 1; /* >&-x closes, and x is another word */
}

/* Redirections after a compound command. */
bool swx_parse_redirections(parser *p, bool *any)
{
    *any = false;
    while (swx_parse_blanks(p)) {
        const uint8_t *start = p->at;
        while (swx_class[peek(p, 0)] & DIGIT) {
            p->at++;
        }
        uint8_t c = peek(p, 0);
        bool redirects = c == '<' || c == '>' || (c == '&' && peek(p, 1) == '>' && p->at == start);
        if (!redirects || peek(p, 1) == '(') {
            p->at = start;
            return true;
        }
        if (!swx_parse_redirection(p)) {
            return false;
        }
        *any = true;
    }
    return false;
}
