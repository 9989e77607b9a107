/* Recursive descent over the pattern's text.  Sequences are linked from their last element backwards, because the NFA is
 * built from the end. */
#include "swx_regex.h"

#include <string.h>

#include "swx_alloc.h"

enum { FLAG_I = 1, FLAG_M = 2, FLAG_S = 4, FLAG_X = 8, FLAG_A = 16, FLAG_U = 32 };
enum { CLASS_ANY, CLASS_ANY_BUT_NEWLINE, CLASS_DIGIT, CLASS_WORD, CLASS_SPACE, CLASS_NOT_DIGIT, CLASS_NOT_WORD, CLASS_NOT_SPACE };
#define END_OF_PATTERN UINT32_MAX

typedef struct {
    swx_regex *regex;
    const uint8_t *text;
    size_t size, at;
    unsigned depth;
    swx_charset set; /* the class being read */
    unsigned predefined; /* bits of CLASS_...: which it has already */
    struct { size_t at, size; } *names; /* of named groups */
    size_t name_count, name_capacity;
    swx_error *err;
    swx_status status; /* the first failure; nothing goes on after it */
} parser;

static uint32_t parse_alternatives(parser *p, unsigned flags);

static bool fail(parser *p, swx_status status, size_t position, const char *text)
{
    if (p->status == SWX_OK) {
        p->status = swx_fail(p->err, status, text);
        if (p->err) {
            p->err->position = position;
        }
    }
    return false;
}

static bool invalid(parser *p, size_t position, const char *text) { return fail(p, SWX_EINVAL, position, text); }

static bool unsupported(parser *p, size_t position, const char *text)
{
    return fail(p, SWX_EUNSUPPORTED, position, text);
}

static bool back_reference(parser *p, size_t position)
{
    return unsupported(p, position, "a back-reference: write what it may be, or look for it in the output");
}

static bool check(parser *p, swx_status status)
{
    return status == SWX_OK || fail(p, status, p->at, "out of memory");
}

/* ---- the text ---- */

/* Length of the well-formed UTF-8 character at bytes, 0 when there is none. */
static size_t utf8_decode(const uint8_t *bytes, size_t size, uint32_t *code_point)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint8_t lead = bytes[0];
    size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0 || length > size) {
        return 0;
    }
    uint32_t value = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xC0) != 0x80) {
            return 0;
        }
        value = value << 6 | (bytes[i] & 0x3F);
    }
    *code_point = value;
    return value < least[length] || value > SWX_LAST_CODE_POINT || (value >= 0xD800 && value < 0xE000) ? 0 : length;
}

static uint32_t peek(const parser *p)
{
    uint32_t value = END_OF_PATTERN;
    if (p->at < p->size) {
        utf8_decode(p->text + p->at, p->size - p->at, &value);
    }
    return value;
}

static uint32_t next(parser *p)
{
    uint32_t value = END_OF_PATTERN;
    if (p->at < p->size) {
        p->at += utf8_decode(p->text + p->at, p->size - p->at, &value);
    }
    return value;
}

static bool accept(parser *p, char wanted)
{
    bool same = p->at < p->size && p->text[p->at] == (uint8_t)wanted;
    p->at += same;
    return same;
}

static bool ahead(const parser *p, const char *wanted)
{
    size_t length = strlen(wanted);
    return p->size - p->at >= length && memcmp(p->text + p->at, wanted, length) == 0;
}

static bool check_utf8(parser *p)
{
    for (size_t at = 0, length; at < p->size; at += length) {
        uint32_t value;
        length = utf8_decode(p->text + at, p->size - at, &value);
        if (length == 0) {
            return invalid(p, at, "the pattern is not UTF-8");
        }
    }
    return true;
}

static bool is_digit(uint32_t c) { return c >= '0' && c <= '9'; }
static bool is_octal(uint32_t c) { return c >= '0' && c <= '7'; }
static bool is_letter(uint32_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
static bool is_space(uint32_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static int hex_value(uint32_t c)
{
    if (is_digit(c)) {
        return (int)(c - '0');
    }
    return (c | 32) >= 'a' && (c | 32) <= 'f' ? (int)((c | 32) - 'a' + 10) : -1;
}

/* ---- the tree ---- */

static uint32_t add_node(parser *p, swx_node node)
{
    swx_regex *regex = p->regex;
    if (regex->node_count == regex->node_capacity) {
        size_t capacity = regex->node_capacity ? regex->node_capacity * 2 : 64;
        swx_node *nodes = swx_realloc(regex->nodes, capacity * sizeof(*nodes));
        if (!nodes) {
            check(p, SWX_ENOMEM);
            return 0;
        }
        regex->nodes = nodes;
        regex->node_capacity = capacity;
        regex->node_count += regex->node_count == 0;
    }
    regex->nodes[regex->node_count] = node;
    return (uint32_t)regex->node_count++;
}

/* The class + 1 that has the ranges of p->set; 0: none has. */
static uint32_t find_class(const parser *p)
{
    const swx_regex *regex = p->regex;
    for (size_t i = regex->class_count; i-- > 0;) {
        swx_class known = regex->classes[i];
        if (known.count == p->set.count &&
            memcmp(regex->ranges.ranges + known.first, p->set.ranges, known.count * sizeof(swx_range)) == 0) {
            return (uint32_t)i + 1;
        }
    }
    return 0;
}

/* Makes a class of p->set, which must be normalised, and empties it; returns its index + 1, or 0. */
static uint32_t add_class(parser *p)
{
    swx_regex *regex = p->regex;
    uint32_t found = p->set.count ? find_class(p) : 0;
    if (found) {
        p->set.count = 0;
        return found;
    }
    if (regex->class_count == SWX_REGEX_MAX_CLASSES || p->set.count > SWX_REGEX_MAX_RANGES - regex->ranges.count) {
        fail(p, SWX_ELIMIT, p->at, "the patterns have too many classes");
        return 0;
    }
    if (regex->class_count == regex->class_capacity) {
        size_t capacity = regex->class_capacity ? regex->class_capacity * 2 : 16;
        swx_class *classes = swx_realloc(regex->classes, capacity * sizeof(*classes));
        if (!classes) {
            check(p, SWX_ENOMEM);
            return 0;
        }
        regex->classes = classes;
        regex->class_capacity = capacity;
    }
    swx_class added = { (uint32_t)regex->ranges.count, (uint32_t)p->set.count };
    if (!check(p, swx_charset_add_all(&regex->ranges, p->set.ranges, p->set.count))) {
        return 0;
    }
    p->set.count = 0;
    regex->classes[regex->class_count] = added;
    return (uint32_t)++regex->class_count;
}

static uint32_t class_node(parser *p, uint32_t class_plus_1)
{
    return class_plus_1 ? add_node(p, (swx_node){ .kind = SWX_NODE_CLASS, .value = class_plus_1 - 1 }) : 0;
}

/* ---- predefined classes ---- */

static const swx_range ascii_digits[] = { { '0', '9' } };
static const swx_range ascii_words[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };
static const swx_range ascii_spaces[] = { { '\t', '\r' }, { ' ', ' ' } };
/* str.isspace: the same in every version of Unicode since 6.3. */
static const swx_range spaces[] = { { '\t', '\r' },     { 0x1C, ' ' },        { 0x85, 0x85 },     { 0xA0, 0xA0 },
                                    { 0x1680, 0x1680 }, { 0x2000, 0x200A },   { 0x2028, 0x2029 }, { 0x202F, 0x202F },
                                    { 0x205F, 0x205F }, { 0x3000, 0x3000 } };

/* The ranges of \d, \w or \s (or of the opposite letter) under the flags. */
static bool predefined(parser *p, uint32_t letter, unsigned flags, const swx_range **ranges, size_t *count)
{
    const swx_match_tables *tables = p->regex->tables;
    bool ascii = flags & FLAG_A;
    letter |= 32;
    if (letter == 's') {
        *ranges = ascii ? ascii_spaces : spaces;
        *count = ascii ? SWX_COUNT(ascii_spaces) : SWX_COUNT(spaces);
    } else if (ascii) {
        *ranges = letter == 'd' ? ascii_digits : ascii_words;
        *count = letter == 'd' ? SWX_COUNT(ascii_digits) : SWX_COUNT(ascii_words);
    } else if (tables) {
        *ranges = letter == 'd' ? tables->digit : tables->word;
        *count = letter == 'd' ? tables->digits : tables->words;
    } else {
        return unsupported(p, p->at, "\\d, \\w and \\b need tables of Unicode, which were not given");
    }
    return true;
}

/* Adds \d, \w, \s, or an opposite when the letter is a capital, to p->set. */
static bool add_predefined(parser *p, uint32_t letter, unsigned flags)
{
    const swx_range *ranges = NULL;
    size_t count = 0;
    if (!predefined(p, letter, flags, &ranges, &count)) {
        return false;
    }
    bool opposite = !(letter & 32);
    return check(p, opposite ? swx_charset_add_inverse(&p->set, ranges, count)
                             : swx_charset_add_all(&p->set, ranges, count));
}

/* The class + 1 of a predefined set that is used again and again; made once unless (?a) changes its meaning. */
static uint32_t shared_class(parser *p, unsigned which, unsigned flags)
{
    static const char letters[] = "..dwsDWS";
    uint32_t *shared = flags & FLAG_A && which >= CLASS_DIGIT ? NULL : &p->regex->shared[which];
    if (shared && *shared) {
        return *shared;
    }
    bool good;
    if (which == CLASS_ANY) {
        good = check(p, swx_charset_add(&p->set, 0, SWX_LAST_CODE_POINT));
    } else if (which == CLASS_ANY_BUT_NEWLINE) {
        static const swx_range newline = { '\n', '\n' };
        good = check(p, swx_charset_add_inverse(&p->set, &newline, 1));
    } else {
        good = add_predefined(p, (uint32_t)letters[which], flags);
    }
    uint32_t made = good ? add_class(p) : 0;
    if (shared) {
        *shared = made;
    }
    return made;
}

static unsigned which_class(uint32_t letter)
{
    switch (letter) {
    case 'd': return CLASS_DIGIT;
    case 'w': return CLASS_WORD;
    case 's': return CLASS_SPACE;
    case 'D': return CLASS_NOT_DIGIT;
    case 'W': return CLASS_NOT_WORD;
    default: return CLASS_NOT_SPACE;
    }
}

/* ---- letter case ---- */

/* Adds to p->set what (?i) makes equal to the ASCII characters of low..high: the other case, and in Unicode the four
 * characters beyond ASCII that `re` folds onto i, k and s. */
static bool add_other_cases(parser *p, uint32_t low, uint32_t high, unsigned flags)
{
    for (uint32_t c = low; c <= high && c < 128; c++) {
        if (!is_letter(c)) {
            continue;
        }
        swx_status status = swx_charset_add(&p->set, c ^ 32, c ^ 32);
        if (status == SWX_OK && !(flags & FLAG_A)) {
            uint32_t folded = (c | 32) == 'i' ? 0x130 : (c | 32) == 'k' ? 0x212A : (c | 32) == 's' ? 0x17F : 0;
            if (folded) {
                status = swx_charset_add(&p->set, folded, folded + (folded == 0x130));
            }
        }
        if (!check(p, status)) {
            return false;
        }
    }
    return true;
}

/* Adds low..high to p->set, with the other cases under (?i). */
static bool add_range(parser *p, size_t position, uint32_t low, uint32_t high, unsigned flags)
{
    if (flags & FLAG_I) {
        if (high >= 128 && !(flags & FLAG_A)) {
            return unsupported(p, position, "(?i) with a character beyond ASCII: write both cases, as in [éÉ]");
        }
        if (!add_other_cases(p, low, high, flags)) {
            return false;
        }
    }
    return check(p, swx_charset_add(&p->set, low, high));
}

static bool is_surrogate(uint32_t c) { return c >= 0xD800 && c < 0xE000; }

static uint32_t char_node(parser *p, size_t position, uint32_t c, unsigned flags)
{
    if (is_surrogate(c)) {
        unsupported(p, position, "a lone surrogate, which no output has");
        return 0;
    }
    if ((flags & FLAG_I) && (is_letter(c) || c >= 128)) {
        if (!add_range(p, position, c, c, flags)) {
            return 0;
        }
        swx_charset_normalise(&p->set);
        if (p->set.count > 1) {
            return class_node(p, add_class(p));
        }
        p->set.count = 0;
    }
    return add_node(p, (swx_node){ .kind = SWX_NODE_CHAR, .value = c });
}

/* ---- escapes ---- */

static bool hex_escape(parser *p, size_t position, unsigned digits, uint32_t *value)
{
    uint32_t result = 0;
    for (unsigned i = 0; i < digits; i++) {
        int digit = hex_value(peek(p));
        if (digit < 0) {
            return invalid(p, position, "incomplete escape");
        }
        next(p);
        result = result << 4 | (uint32_t)digit;
    }
    if (result > SWX_LAST_CODE_POINT) {
        return invalid(p, position, "bad escape: no such code point");
    }
    *value = result;
    return true;
}

/* Up to `most` more octal digits onto value. */
static bool octal_escape(parser *p, size_t position, unsigned most, uint32_t *value)
{
    for (unsigned i = 0; i < most && is_octal(peek(p)); i++) {
        *value = *value * 8 + (next(p) - '0');
    }
    return *value <= 0377 || invalid(p, position, "octal escape outside of range 0-0o377");
}

/* The escapes that mean one character, inside and outside of classes; c is the character after the backslash.
 * Digits are the caller's. */
static bool char_escape(parser *p, size_t position, uint32_t c, uint32_t *value)
{
    switch (c) {
    case 'a': *value = '\a'; return true;
    case 'f': *value = '\f'; return true;
    case 'n': *value = '\n'; return true;
    case 'r': *value = '\r'; return true;
    case 't': *value = '\t'; return true;
    case 'v': *value = '\v'; return true;
    case 'x': return hex_escape(p, position, 2, value);
    case 'u': return hex_escape(p, position, 4, value);
    case 'U': return hex_escape(p, position, 8, value);
    case 'N': return unsupported(p, position, "\\N{...}: write the character itself");
    case 'z': return unsupported(p, position, "\\z, which is an error or an anchor depending on the version of re: write \\Z");
    case END_OF_PATTERN: return invalid(p, position, "bad escape (end of pattern)");
    default: *value = c; return !is_letter(c) || invalid(p, position, "bad escape");
    }
}

/* A digit after a backslash outside of a class: an octal character or a reference to a group. */
static bool digit_escape(parser *p, size_t position, uint32_t c, uint32_t *value)
{
    *value = c - '0';
    if (c == '0') {
        return octal_escape(p, position, 2, value);
    }
    if (is_octal(c) && p->size - p->at >= 2 && is_octal(p->text[p->at]) && is_octal(p->text[p->at + 1])) {
        return octal_escape(p, position, 2, value);
    }
    return back_reference(p, position);
}

static uint32_t assert_node(parser *p, swx_assertion kind)
{
    return add_node(p, (swx_node){ .kind = SWX_NODE_ASSERT, .value = kind });
}

static uint32_t boundary_node(parser *p, bool opposite, unsigned flags)
{
    uint32_t word = shared_class(p, CLASS_WORD, flags);
    if (!word) {
        return 0;
    }
    if (flags & FLAG_A) {
        p->regex->ascii_word = word;
        return assert_node(p, opposite ? SWX_AT_ASCII_NO_BOUNDARY : SWX_AT_ASCII_BOUNDARY);
    }
    p->regex->unicode_word = word;
    return assert_node(p, opposite ? SWX_AT_NO_BOUNDARY : SWX_AT_BOUNDARY);
}

static uint32_t parse_escape(parser *p, size_t position, unsigned flags)
{
    uint32_t c = next(p), value = 0;
    switch (c) {
    case 'A': return assert_node(p, SWX_AT_BEGIN);
    case 'Z': return assert_node(p, SWX_AT_END);
    case 'b': return boundary_node(p, false, flags);
    case 'B': return boundary_node(p, true, flags);
    case 'd': case 'D': case 'w': case 'W': case 's': case 'S':
        return class_node(p, shared_class(p, which_class(c), flags));
    default:
        break;
    }
    bool good = is_digit(c) ? digit_escape(p, position, c, &value) : char_escape(p, position, c, &value);
    return good ? char_node(p, position, value, flags) : 0;
}

/* ---- classes ---- */

/* One member of a class: a character (*single), or a predefined set, which is added to p->set at once. */
static bool class_member(parser *p, uint32_t c, size_t position, unsigned flags, bool *single, uint32_t *value)
{
    *single = true;
    *value = c;
    if (c != '\\') {
        return true;
    }
    c = next(p);
    switch (c) {
    case 'b': *value = '\b'; return true;
    case 'd': case 'D': case 'w': case 'W': case 's': case 'S':
        *single = false;
        if (p->predefined & 1u << which_class(c)) {
            return true;
        }
        p->predefined |= 1u << which_class(c);
        return add_predefined(p, c, flags);
    default:
        break;
    }
    if (!is_digit(c)) {
        return char_escape(p, position, c, value);
    }
    *value = c - '0';
    return is_octal(c) ? octal_escape(p, position, 2, value) : invalid(p, position, "bad escape");
}

/* A class that holds some surrogates and not all could tell invalid bytes apart, which the alphabet does not. */
static bool check_surrogates(parser *p, size_t position)
{
    for (size_t i = 0; i < p->set.count; i++) {
        swx_range range = p->set.ranges[i];
        if ((range.low > 0xD800 && range.low < 0xE000) || (range.high >= 0xD800 && range.high < 0xDFFF)) {
            return unsupported(p, position, "a lone surrogate, which no output has");
        }
    }
    return true;
}

/* One member or range of the class that began at `start`; c was read at `position`. */
static bool class_item(parser *p, uint32_t c, size_t position, size_t start, unsigned flags, bool *closed)
{
    bool single, single_high;
    uint32_t low, high;
    if (!class_member(p, c, position, flags, &single, &low)) {
        return false;
    }
    high = low;
    if (accept(p, '-')) {
        c = next(p);
        if (c == END_OF_PATTERN) {
            return invalid(p, start, "unterminated character set");
        }
        if (c == ']') {
            *closed = true;
            if (!check(p, swx_charset_add(&p->set, '-', '-'))) {
                return false;
            }
        } else {
            if (!class_member(p, c, p->at - 1, flags, &single_high, &high)) {
                return false;
            }
            if (!single || !single_high || high < low) {
                return invalid(p, position, "bad character range");
            }
        }
    }
    return !single || add_range(p, position, low, high, flags);
}

static uint32_t parse_class(parser *p, size_t start, unsigned flags)
{
    bool closed = false, negated = accept(p, '^');
    p->set.count = 0;
    p->predefined = 0;
    for (bool first = true; !closed; first = false) {
        size_t position = p->at;
        uint32_t c = next(p);
        if (c == END_OF_PATTERN) {
            invalid(p, start, "unterminated character set");
            return 0;
        }
        if (c == ']' && !first) {
            break;
        }
        if (!class_item(p, c, position, start, flags, &closed)) {
            return 0;
        }
    }
    swx_charset_normalise(&p->set);
    if ((negated && !check(p, swx_charset_invert(&p->set))) || !check_surrogates(p, start)) {
        return 0;
    }
    if (p->set.count == 1 && p->set.ranges[0].low == p->set.ranges[0].high) {
        uint32_t only = p->set.ranges[0].low;
        p->set.count = 0;
        return add_node(p, (swx_node){ .kind = SWX_NODE_CHAR, .value = only });
    }
    return class_node(p, add_class(p));
}

/* ---- groups ---- */

static bool flag_bit(parser *p, uint32_t c, unsigned *bit)
{
    switch (c) {
    case 'i': *bit = FLAG_I; return true;
    case 'm': *bit = FLAG_M; return true;
    case 's': *bit = FLAG_S; return true;
    case 'x': *bit = FLAG_X; return true;
    case 'a': *bit = FLAG_A; return true;
    case 'u': *bit = FLAG_U; return true;
    case 'L': return invalid(p, p->at, "bad inline flags: cannot use 'L' flag with a str pattern");
    case 't': return unsupported(p, p->at, "the flag 't'");
    default: return invalid(p, p->at, "unknown or missing flag");
    }
}

/* Letters up to something that is none of them. */
static bool flag_letters(parser *p, unsigned *flags)
{
    for (uint32_t c = peek(p); c != ')' && c != ':' && c != '-'; c = peek(p)) {
        unsigned bit = 0;
        if (c == END_OF_PATTERN) {
            return invalid(p, p->at, "missing -, : or )");
        }
        if (!flag_bit(p, c, &bit)) {
            return false;
        }
        *flags |= bit;
        next(p);
    }
    return true;
}

/* What follows "(?" up to and including ':' or ')'.  *global tells which of the two it was. */
static bool parse_flags(parser *p, unsigned *flags, bool *global)
{
    unsigned on = 0, off = 0;
    if (!flag_letters(p, &on)) {
        return false;
    }
    if ((on & FLAG_A) && (on & FLAG_U)) {
        return invalid(p, p->at, "bad inline flags: flags 'a' and 'u' are incompatible");
    }
    *global = accept(p, ')');
    if (accept(p, '-')) {
        size_t start = p->at;
        if (!flag_letters(p, &off)) {
            return false;
        }
        if (p->at == start || peek(p) != ':') {
            return invalid(p, p->at, p->at == start ? "missing flag" : "missing :");
        }
        if (off & (FLAG_A | FLAG_U)) {
            return invalid(p, p->at, "bad inline flags: cannot turn off flags 'a' and 'u'");
        }
        if (on & off) {
            return invalid(p, p->at, "bad inline flags: flag turned on and off");
        }
    }
    if (!*global) {
        accept(p, ':');
    }
    if (on & FLAG_U) {
        *flags &= ~(unsigned)FLAG_A;
    }
    *flags = (*flags | (on & ~(unsigned)FLAG_U)) & ~off;
    return true;
}

/* The comment after "(?#". */
static bool skip_comment_group(parser *p, size_t start)
{
    for (uint32_t c = next(p); c != ')'; c = next(p)) {
        if (c == END_OF_PATTERN) {
            return invalid(p, start, "missing ), unterminated comment");
        }
    }
    return true;
}

static bool add_name(parser *p, size_t at, size_t size)
{
    for (size_t i = 0; i < p->name_count; i++) {
        if (p->names[i].size == size && memcmp(p->text + p->names[i].at, p->text + at, size) == 0) {
            return invalid(p, at, "redefinition of a group name");
        }
    }
    if (p->name_count == p->name_capacity) {
        size_t capacity = p->name_capacity ? p->name_capacity * 2 : 8;
        void *names = swx_realloc(p->names, capacity * sizeof(*p->names));
        if (!names) {
            return check(p, SWX_ENOMEM);
        }
        p->names = names;
        p->name_capacity = capacity;
    }
    p->names[p->name_count].at = at;
    p->names[p->name_count++].size = size;
    return true;
}

/* The name after "(?P<", with its '>'.  Which characters beyond ASCII may be in it is not asked. */
static bool parse_name(parser *p)
{
    size_t start = p->at;
    for (uint32_t c = next(p); c != '>'; c = next(p)) {
        if (c == END_OF_PATTERN) {
            return invalid(p, start, "missing >, unterminated name");
        }
        if (c < 128 && !is_letter(c) && c != '_' && (!is_digit(c) || p->at - 1 == start)) {
            return invalid(p, start, "bad character in group name");
        }
    }
    return p->at - 1 > start ? add_name(p, start, p->at - 1 - start) : invalid(p, start, "missing group name");
}

/* What stands between "(" and the group's contents.  Sets *flags. */
static bool parse_group_start(parser *p, size_t start, unsigned *flags)
{
    bool global = false;
    if (!accept(p, '?')) {
        return true;
    }
    switch (peek(p)) {
    case END_OF_PATTERN: return invalid(p, start, "unexpected end of pattern");
    case ':': next(p); return true;
    case '=': case '!': case '<': return unsupported(p, start, "look-around: write what stands there into the pattern itself");
    case '>': return unsupported(p, start, "an atomic group: write (?:...)");
    case '(': return unsupported(p, start, "a conditional: write two patterns");
    case 'P':
        next(p);
        if (accept(p, '<')) {
            return parse_name(p);
        }
        return ahead(p, "=") ? back_reference(p, start) : invalid(p, start, "unknown extension ?P");
    default:
        break;
    }
    uint32_t c = peek(p);
    if (c != '-' && !(is_letter(c) && strchr("imsxauLt", (int)c))) {
        return invalid(p, start, "unknown extension");
    }
    if (!parse_flags(p, flags, &global)) {
        return false;
    }
    return !global || invalid(p, start, "global flags not at the start of the expression");
}

static uint32_t parse_group(parser *p, size_t start, unsigned flags)
{
    if (!parse_group_start(p, start, &flags)) {
        return 0;
    }
    if (p->depth == SWX_REGEX_MAX_DEPTH) {
        fail(p, SWX_ELIMIT, start, "groups are nested too deep");
        return 0;
    }
    p->depth++;
    uint32_t inner = parse_alternatives(p, flags);
    p->depth--;
    if (inner && !accept(p, ')')) {
        invalid(p, start, "missing ), unterminated subpattern");
        return 0;
    }
    return inner;
}

/* ---- repeats ---- */

static bool read_number(parser *p, size_t start, uint32_t *value)
{
    uint64_t number = 0;
    for (; is_digit(peek(p)); next(p)) {
        number = number * 10 + (peek(p) - '0');
        if (number >= UINT32_MAX) {
            return invalid(p, start, "the repetition number is too large");
        }
    }
    *value = (uint32_t)number;
    return true;
}

/* After '{': reads the bounds and '}'.  *is_repeat is false when the brace is an ordinary character. */
static bool parse_bounds(parser *p, uint32_t *min, uint32_t *max, bool *is_repeat)
{
    size_t start = p->at, digits;
    *min = 0;
    *max = SWX_UNLIMITED;
    for (digits = p->at; digits < p->size && is_digit(p->text[digits]); digits++) {
    }
    bool comma = digits < p->size && p->text[digits] == ',';
    size_t end = digits + comma;
    for (; comma && end < p->size && is_digit(p->text[end]); end++) {
    }
    *is_repeat = end < p->size && p->text[end] == '}' && end > start;
    if (!*is_repeat) {
        return true;
    }
    if (!read_number(p, start, min)) {
        return false;
    }
    if (!comma) {
        *max = *min;
    } else {
        p->at++;
        if (end > digits + 1 && !read_number(p, start, max)) {
            return false;
        }
    }
    p->at++;
    return *max >= *min || invalid(p, start, "min repeat greater than max repeat");
}

/* Reads a repeat after c, which is one of * + ? {.  *is_repeat is false when { is an ordinary character. */
static bool parse_repeat(parser *p, uint32_t c, size_t position, swx_node *repeat, bool *is_repeat)
{
    *is_repeat = true;
    repeat->kind = SWX_NODE_REPEAT;
    repeat->min = c == '+';
    repeat->max = c == '?' ? 1 : SWX_UNLIMITED;
    if (c == '{' && !parse_bounds(p, &repeat->min, &repeat->max, is_repeat)) {
        return false;
    }
    if (!*is_repeat || accept(p, '?')) {
        return true;
    }
    return peek(p) != '+' || unsupported(p, position, "a possessive repeat: leave its last + out");
}

/* Puts a repeat around the last element of a sequence. */
static uint32_t wrap_last(parser *p, size_t position, uint32_t last, swx_node repeat)
{
    swx_node *nodes = p->regex->nodes;
    if (!last || nodes[last].kind == SWX_NODE_ASSERT) {
        invalid(p, position, "nothing to repeat");
        return 0;
    }
    if (nodes[last].kind == SWX_NODE_REPEAT) {
        invalid(p, position, "multiple repeat");
        return 0;
    }
    repeat.child = last;
    repeat.before = nodes[last].before;
    nodes[last].before = 0;
    return add_node(p, repeat);
}

/* ---- sequences ---- */

static void skip_line(parser *p)
{
    for (uint32_t c = next(p); c != '\n' && c != END_OF_PATTERN; c = next(p)) {
    }
}

/* One element that is not a repeat; c was read.  A group is wrapped so that what repeats it sees one element. */
static uint32_t parse_atom(parser *p, uint32_t c, size_t position, unsigned flags)
{
    switch (c) {
    case '\\': return parse_escape(p, position, flags);
    case '[': return parse_class(p, position, flags);
    case '.': return class_node(p, shared_class(p, flags & FLAG_S ? CLASS_ANY : CLASS_ANY_BUT_NEWLINE, flags));
    case '^': return assert_node(p, flags & FLAG_M ? SWX_AT_LINE_BEGIN : SWX_AT_BEGIN);
    case '$': return assert_node(p, flags & FLAG_M ? SWX_AT_LINE_END : SWX_AT_LAST_LINE);
    case '(': {
        uint32_t inner = parse_group(p, position, flags);
        return inner ? add_node(p, (swx_node){ .kind = SWX_NODE_CAT, .child = inner }) : 0;
    }
    default: return char_node(p, position, c, flags);
    }
}

static uint32_t parse_sequence(parser *p, unsigned flags)
{
    uint32_t last = 0;
    for (uint32_t c = peek(p); c != END_OF_PATTERN && c != '|' && c != ')'; c = peek(p)) {
        size_t position = p->at;
        swx_node repeat = { 0 };
        bool is_repeat = false;
        next(p);
        if ((flags & FLAG_X) && is_space(c)) {
            continue;
        }
        if ((flags & FLAG_X) && c == '#') {
            skip_line(p);
            continue;
        }
        if (c == '(' && ahead(p, "?#")) {
            if (!skip_comment_group(p, position)) {
                return 0;
            }
            continue;
        }
        if ((c == '*' || c == '+' || c == '?' || c == '{') && !parse_repeat(p, c, position, &repeat, &is_repeat)) {
            return 0;
        }
        uint32_t added = is_repeat ? wrap_last(p, position, last, repeat) : parse_atom(p, c, position, flags);
        if (!added) {
            return 0;
        }
        if (!is_repeat) {
            p->regex->nodes[added].before = last;
        }
        last = added;
    }
    return add_node(p, (swx_node){ .kind = last ? SWX_NODE_CAT : SWX_NODE_EMPTY, .child = last });
}

static uint32_t parse_alternatives(parser *p, unsigned flags)
{
    uint32_t last = parse_sequence(p, flags);
    if (!last || peek(p) != '|') {
        return last;
    }
    while (accept(p, '|')) {
        uint32_t branch = parse_sequence(p, flags);
        if (!branch) {
            return 0;
        }
        p->regex->nodes[branch].before = last;
        last = branch;
    }
    return add_node(p, (swx_node){ .kind = SWX_NODE_ALT, .child = last });
}

/* Flags for the whole pattern, "(?ix)", which may only be preceded by what produces nothing. */
static bool parse_global_flags(parser *p, unsigned *flags)
{
    for (;;) {
        size_t start = p->at;
        if ((*flags & FLAG_X) && is_space(peek(p))) {
            next(p);
        } else if ((*flags & FLAG_X) && peek(p) == '#') {
            skip_line(p);
        } else if (ahead(p, "(?#")) {
            if (!skip_comment_group(p, start)) {
                return false;
            }
        } else if (ahead(p, "(?") && p->size - p->at > 2 && is_letter(p->text[p->at + 2]) && p->text[p->at + 2] != 'P') {
            unsigned changed = *flags;
            bool global = false;
            p->at += 2;
            if (!parse_flags(p, &changed, &global)) {
                return false;
            }
            if (!global) {
                p->at = start;
                return true;
            }
            *flags = changed;
        } else {
            return true;
        }
    }
}

/* ---- the front ---- */

swx_status swx_regex_parse(swx_regex *regex, swx_pattern pattern, uint32_t *root, swx_error *err)
{
    parser p = { .regex = regex, .text = pattern.bytes, .size = pattern.size, .err = err };
    unsigned flags = FLAG_S;
    *root = 0;
    if (check_utf8(&p) && parse_global_flags(&p, &flags)) {
        *root = parse_alternatives(&p, flags);
    }
    if (*root && p.at < p.size) {
        invalid(&p, p.at, "unbalanced parenthesis");
    }
    swx_charset_free(&p.set);
    swx_free(p.names);
    return p.status;
}

void swx_regex_free(swx_regex *regex)
{
    swx_free(regex->nodes);
    swx_free(regex->classes);
    swx_charset_free(&regex->ranges);
    *regex = (swx_regex){ 0 };
}

bool swx_regex_is_literal(const swx_regex *regex, uint32_t root)
{
    const swx_node *nodes = regex->nodes;
    if (nodes[root].kind != SWX_NODE_CAT) {
        return nodes[root].kind == SWX_NODE_EMPTY;
    }
    for (uint32_t at = nodes[root].child; at; at = nodes[at].before) {
        if (nodes[at].kind != SWX_NODE_CHAR) {
            return false;
        }
    }
    return true;
}

size_t swx_utf8_encode(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, c >>= 6) {
        out[i] = (uint8_t)(0x80 | (c & 0x3F));
    }
    out[0] = (uint8_t)((0xF00u >> length & 0xF0) | c);
    return length;
}

size_t swx_regex_literal(const swx_regex *regex, uint32_t root, uint8_t *out)
{
    size_t length = 0, at = 0;
    uint8_t bytes[4];
    for (uint32_t node = regex->nodes[root].child; node; node = regex->nodes[node].before) {
        length += swx_utf8_encode(regex->nodes[node].value, bytes);
    }
    if (!out) {
        return length;
    }
    at = length;
    for (uint32_t node = regex->nodes[root].child; node; node = regex->nodes[node].before) {
        size_t size = swx_utf8_encode(regex->nodes[node].value, bytes);
        at -= size;
        memcpy(out + at, bytes, size);
    }
    return length;
}
