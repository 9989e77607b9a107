/* [[ ]], compound commands, simple commands, lists. */
#include "swx_grammar.h"

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
    if (!swx_parse_blanks(p) || !at_word(p) || *p->at == '<' || *p->at == '>' || !swx_parse_word(p, PLAIN, w)) {
        return false;
    }
    uint8_t c = peek(p, 0);
    return c == ')' || c == '\n' || swx_class[c] & BLANK;
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
        case '"': fine = swx_parse_double_quotes(p); break;
        case '$': fine = swx_parse_counted_dollar(p); break;
        case '\'': fine = swx_parse_single_quotes(p); break;
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
    if (!swx_parse_blanks(p)) {
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
        } else if (swx_class[c] & (BLANK | META)) {
            break;
        } else if (joins(p) || !swx_parse_word(p, PLAIN, &w)) {
            return false;
        } else if (joins(p)) {
            return false;
        }
    }
    uint8_t c = peek(p, 0);
    return p->at != start && (c == ')' || c == '\n' || swx_class[c] & BLANK);
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
    if (!swx_parse_newlines(p)) {
        return false;
    }
    while (peek(p, 0) == '!' && swx_class[peek(p, 1)] & BLANK) {
        p->at++;
        if (!swx_parse_newlines(p)) {
            return false;
        }
    }
    if (peek(p, 0) == '(') {
        p->at++;
        if (joins(p) || !descend(p) || !cond_list(p) || peek(p, 0) != ')') {
            return false;
        }
        p->at++;
        return ascend(p) && swx_parse_newlines(p);
    }
    if (!cond_word(p, &w) || is_word(&w, "]]") || is_word(&w, "!")) {
        return false;
    }
    if (in_set(&w, unary)) {
        return cond_word(p, &w) && !is_word(&w, "]]") && swx_parse_newlines(p);
    }
    if (!swx_parse_blanks(p)) {
        return false;
    }
    uint8_t c = peek(p, 0);
    if (c == '\n') {
        return swx_parse_newlines(p);
    }
    if ((c == '<' || c == '>') && swx_class[peek(p, 1)] & BLANK) {
        p->at++;
        return cond_word(p, &w) && !is_word(&w, "]]") && swx_parse_newlines(p);
    }
    if (swx_class[c] & META) {
        return true;
    }
    if (c == ']' && peek(p, 1) == ']') {
        return true;
    }
    if (!cond_word(p, &w)) {
        return false;
    }
    if (in_set(&w, numeric)) {
        return cond_word(p, &w) && !is_word(&w, "]]") && swx_parse_newlines(p);
    }
    bool regex = is_word(&w, "=~");
    if (!regex && !in_set(&w, pattern)) {
        return false;
    }
    if (!cond_pattern(p, regex)) {
        return false;
    }
    return swx_parse_newlines(p);
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
    return swx_parse_list(p, &count) && count;
}

static bool body(parser *p, const char *open, const char *close)
{
    return swx_parse_keyword(p, open) && filled_list(p) && swx_parse_keyword(p, close);
}

static bool if_command(parser *p)
{
    do {
        if (!filled_list(p) || !swx_parse_keyword(p, "then") || !filled_list(p)) {
            return false;
        }
    } while (swx_parse_keyword(p, "elif"));
    if (swx_parse_keyword(p, "else") && !filled_list(p)) {
        return false;
    }
    return swx_parse_keyword(p, "fi");
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
    if (!swx_parse_blanks(p)) {
        return false;
    }
    if (peek(p, 0) == ';') {
        p->at++;
        return !joins(p) && swx_parse_newlines(p);
    }
    return peek(p, 0) == '\n' && swx_parse_newlines(p);
}

static bool for_command(parser *p, bool select)
{
    word w;
    size_t semicolons;
    if (!swx_parse_blanks(p)) {
        return false;
    }
    if (!select && peek(p, 0) == '(' && peek(p, 1) == '(') {
        p->at += 2;
        return swx_parse_arithmetic(p, &semicolons) && semicolons == 2 && separator(p) && body(p, "do", "done");
    }
    if (!at_word(p) || !swx_parse_word(p, PLAIN, &w) || !is_identifier(&w) || !swx_parse_blanks(p)) {
        return false;
    }
    if (swx_parse_keyword(p, "in")) {
        for (;;) {
            if (!swx_parse_blanks(p)) {
                return false;
            }
            if (!at_word(p)) {
                break;
            }
            if (!swx_parse_word(p, PLAIN, &w)) {
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
        if (!swx_parse_blanks(p) || !at_word(p) || *p->at == '<' || *p->at == '>' || !swx_parse_word(p, PLAIN, &w) ||
            is_word(&w, "esac") || !swx_parse_blanks(p)) {
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
    if (!swx_parse_blanks(p) || !at_word(p) || !swx_parse_word(p, PLAIN, &w) || !swx_parse_newlines(p) ||
        !swx_parse_keyword(p, "in")) {
        return false;
    }
    for (;;) {
        size_t count = 0;
        if (!swx_parse_newlines(p)) {
            return false;
        }
        if (swx_parse_keyword(p, "esac")) {
            return true;
        }
        if (!case_patterns(p) || !swx_parse_list(p, &count)) {
            return false;
        }
        if (peek(p, 0) != ';') {
            return swx_parse_keyword(p, "esac");
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
    if (joins(p) || !swx_parse_blanks(p) || peek(p, 0) != ')') {
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
    if (!swx_parse_newlines(p) || !descend(p)) {
        return BAD;
    }
    uint8_t c = peek(p, 0);
    if (c != '(' && !(c == '{' && (swx_class[peek(p, 1)] & BLANK || peek(p, 1) == '\n'))) {
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
    if (!swx_parse_blanks(p) || !at_word(p) || !swx_parse_word(p, PLAIN, &w) || !is_function_name(&w) ||
        !swx_parse_blanks(p)) {
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
        return swx_parse_arithmetic(p, &semicolons) ? SIMPLE : BAD;
    }
    if (joins(p) || !filled_list(p) || peek(p, 0) != ')') {
        return BAD;
    }
    p->at++;
    return joins(p) ? BAD : COMPOUND;
}

static bool cond_command(parser *p)
{
    return swx_class[peek(p, 0)] & BLANK && cond_list(p) && swx_parse_keyword(p, "]]");
}

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
        return filled_list(p) && swx_parse_keyword(p, "}") ? COMPOUND : BAD;
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
            if (!swx_parse_blanks(p)) {
                return BAD;
            }
            if (peek(p, 0) == '(') {
                return is_function_name(&w) && function_parentheses(p) ? function_body(p, &w) : BAD;
            }
            named = command_word(p, &w, &declares);
        }
    }
    for (;;) {
        if (!swx_parse_blanks(p)) {
            return BAD;
        }
        uint8_t c = peek(p, 0);
        if (at_word(p)) {
            if (!swx_parse_word(p, named ? declares ? DECLARATION : PLAIN : FIRST, &w)) {
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
            if (!swx_parse_redirection(p)) {
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
        if (!swx_parse_word(p, FIRST, &w)) {
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
    if (!swx_parse_redirections(p, &redirected)) {
        return BAD;
    }
    ascend(p);
    return redirected ? SIMPLE : found;
}

/* `!` or `time` in front of a pipeline, with a blank and a command after it. */
static bool prefix(parser *p, bool *any)
{
    const uint8_t *start = p->at;
    *any = swx_parse_keyword(p, "!") || swx_parse_keyword(p, "time");
    if (!*any) { /* `!\` newline: may be the keyword */
        return !(peek(p, 0) == '!' && peek(p, 1) == '\\');
    }
    if (!(swx_class[peek(p, 0)] & BLANK) || !swx_parse_blanks(p) || !(at_word(p) || peek(p, 0) == '(')) {
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
        if (!swx_parse_blanks(p)) {
            return BAD;
        }
        if (peek(p, 0) != '|' || peek(p, 1) == '|') {
            return found;
        }
        p->at += peek(p, 1) == '&' ? 2 : 1;
        if (joins(p) || !swx_parse_newlines(p)) {
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
        if (!swx_parse_newlines(p)) {
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
bool swx_parse_list(parser *p, size_t *count)
{
    bool must_close = false; /* `fi done`: a command may not follow, only a closing word */
    for (;;) {
        if (!swx_parse_newlines(p)) {
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
            if (found != COMPOUND || swx_class[c] & META) {
                return false;
            }
            must_close = true;
        }
    }
}

swx_verdict swx_grammar_read(const uint8_t *text, size_t size, unsigned *flags, size_t *stop)
{
    parser p = { .at = text, .end = text + size };
    size_t count = 0;
    bool fine = swx_parse_list(&p, &count) && at_end(&p) && !p.pending;
    *stop = (size_t)(p.at - text);
    if (!fine) {
        return SWX_UNSURE;
    }
    *flags |= (p.dot ? SWX_SCAN_PARSE_STATE : 0) | (p.background ? SWX_SCAN_BACKGROUND : 0) |
              (p.unknown ? SWX_SCAN_UNKNOWN : 0);
    return count ? SWX_COMPLETE : SWX_EMPTY;
}
