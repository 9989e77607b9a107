/* The facts of a text, and its encoding for the terminal. */
#include "swx_command.h"

#include <string.h>

#include "swx_grammar.h"

/* ---- the facts ---- */

enum { SEEN_SET = 1 << 30, SEEN_EDITOR = 1 << 29 };

typedef struct {
    const char *text;
    unsigned flags;
} mention;

static unsigned mentioned(const uint8_t *start, size_t size)
{
    enum {
        PARSE = SWX_SCAN_PARSE_STATE,
        STTY = SWX_SCAN_STTY,
        PROMPT = SWX_SCAN_PROMPT,
        JOBS = SWX_SCAN_JOBS,
        READS = SWX_SCAN_UNKNOWN,
        CHLD = SWX_SCAN_CHLD
    };
    static const mention words[16][9] = {
        /* by their size */
        [2] = { { "fg", JOBS }, { "bg", JOBS }, { "vi", SEEN_EDITOR } },
        [3] = { { "set", SEEN_SET }, { "PS0", PROMPT }, { "PS1", PROMPT }, { "PS2", PROMPT } },
        [4] = { { "eval", PARSE },
                { "exec", SWX_SCAN_EXEC },
                { "stty", STTY },
                { "tput", STTY },
                { "jobs", JOBS },
                { "wait", JOBS | READS },
                { "read", READS },
                { "CHLD", CHLD } },
        [5] = { { "alias", PARSE },
                { "shopt", PARSE },
                { "posix", PARSE },
                { "reset", STTY },
                { "conda", PROMPT },
                { "mamba", PROMPT },
                { "emacs", SEEN_EDITOR } },
        [6] = { { "source", PARSE }, { "disown", JOBS }, { "select", READS } },
        [7] = { { "unalias", PARSE }, { "mapfile", READS }, { "SIGCHLD", CHLD } },
        [8] = { { "activate", PROMPT }, { "starship", PROMPT } },
        [9] = { { "readarray", READS } },
        [10] = { { "promptvars", PROMPT }, { "deactivate", PROMPT }, { "micromamba", PROMPT } },
        [12] = { { "BASH_ALIASES", PARSE } },
        [14] = { { "PROMPT_COMMAND", PROMPT } },
        [15] = { { "POSIXLY_CORRECT", PARSE } },
    };
    for (const mention *word = words[size < SWX_COUNT(words) ? size : 0]; word->text; word++) {
        if (*word->text == (char)*start && memcmp(word->text, start, size) == 0) {
            return word->flags;
        }
    }
    return 0;
}

/* The words of the text, and on the way its control bytes. */
static unsigned mentions(const uint8_t *text, size_t size)
{
    const uint8_t *at = text, *end = text + size;
    unsigned found = 0, classes = 0;
    while (at < end) {
        const uint8_t *start = at;
        while (at < end && swx_class[*at] & NAME) {
            at++;
        }
        if (at == start) {
            classes |= swx_class[*at++];
        } else {
            found |= mentioned(start, (size_t)(at - start));
        }
    }
    if (found & SEEN_SET && found & SEEN_EDITOR) {
        found |= SWX_SCAN_EDITING;
    }
    return (found & ~(unsigned)(SEEN_SET | SEEN_EDITOR)) | (classes & CONTROL ? SWX_SCAN_CONTROL : 0);
}

static bool ends_in_backslash(const uint8_t *start, const uint8_t *end)
{
    const uint8_t *at = end;
    while (at > start && at[-1] == '\\') {
        at--;
    }
    return (end - at) & 1;
}

/* Whether a `.` in the text may be the command; for texts that the grammar does not prove. */
static bool maybe_dot(const uint8_t *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '.' && (i == 0 || swx_class[text[i - 1]] & (BLANK | META))) {
            size_t next = i + 1;
            while (next < size && swx_class[text[next]] & BLANK) {
                next++;
            }
            if (next > i + 1 && next < size && !(swx_class[text[next]] & META) && text[next] != '-') {
                return true; /* unlike `find . -name` */
            }
        }
    }
    return false;
}

/* Sets body_start and body_size. */
static void trim(const uint8_t *text, size_t size, swx_scan *out)
{
    size_t start = 0, end = size;
    while (start < size) {
        bool joined = start + 1 < size && text[start] == '\\' && text[start + 1] == '\n';
        if (!joined && !(swx_class[text[start]] & BLANK) && text[start] != '\n') {
            break;
        }
        start += joined ? 2 : 1;
    }
    /* A blank line may be the end of a here-document whose delimiter is blank: then only the last newline goes. */
    bool documents = memmem(text, size, "<<", 2) != NULL;
    for (bool first = true; first || !documents; first = false) {
        size_t at = end;
        while (!documents && at > start && swx_class[text[at - 1]] & BLANK) {
            at--;
        }
        if (at == start || text[at - 1] != '\n' || ends_in_backslash(text + start, text + at - 1)) {
            break;
        }
        end = at - 1;
    }
    out->body_start = start;
    out->body_size = end - start;
}

static unsigned line_flags(const uint8_t *at, const uint8_t *end)
{
    unsigned flags = 0;
    while (at < end) {
        const uint8_t *found = memchr(at, '\n', (size_t)(end - at));
        flags |= found ? SWX_SCAN_MULTILINE : 0;
        flags |= (found ? found : end) - at >= SWX_LINE_MAX ? SWX_SCAN_LONG_LINE : 0;
        at = found ? found + 1 : end;
    }
    return flags;
}

void swx_command_scan(const uint8_t *text, size_t size, swx_scan *out)
{
    static const uint8_t nothing[1] = { 0 };
    text = size ? text : nothing;
    trim(text, size, out);
    const uint8_t *start = text + out->body_start, *end = start + out->body_size;
    out->flags = mentions(text, size) | line_flags(start, end);
    out->flags |= out->flags & SWX_SCAN_CONTROL && memchr(text, 0, size) ? SWX_SCAN_NUL : 0;
    size_t stop = 0;
    out->verdict = out->flags & SWX_SCAN_NUL ? SWX_UNSURE : swx_grammar_read(start, out->body_size, &out->flags, &stop);
    if (out->verdict == SWX_UNSURE) {
        out->flags |= SWX_SCAN_UNKNOWN;
        out->flags |= ends_in_backslash(start, end) ? SWX_SCAN_BACKSLASH_END : 0;
        /* in the last line: no here-document has begun there, or it would be at the end */
        out->flags |=
            stop < out->body_size && !memchr(start + stop, '\n', out->body_size - stop) ? SWX_SCAN_LINE_END : 0;
        out->flags |= memchr(text, '&', size) ? SWX_SCAN_BACKGROUND : 0;
        out->flags |= maybe_dot(text, size) ? SWX_SCAN_PARSE_STATE : 0;
    }
}

/* Whether the text holds an assignment to PS1. */
static bool assigns_prompt(const uint8_t *text, size_t size)
{
    const uint8_t *end = text + size, *at = text;
    while ((at = memmem(at, (size_t)(end - at), "PS1=", 4))) {
        if (at == text || strchr(" \t\n;&|({'\"", at[-1])) {
            return true;
        }
        at += 4;
    }
    return false;
}

/* Whether a command that mentions exec holds a redirection of standard error, but for one to where standard output goes
 * anyway.  >& is one of both without a number and with 1 or 2; with another number a redirection is of neither. */
static bool redirects_stderr(const uint8_t *text, size_t size)
{
    const uint8_t *end = text + size, *at = text;
    bool stdout_too = false;
    for (; (at = memchr(at, '>', (size_t)(end - at))); at++) {
        uint8_t before = at > text ? at[-1] : 0;
        bool second = before == '2', first = !second && (before == '1' || !(swx_class[before] & DIGIT));
        bool joins = end - at > 1 && at[1] == '&', copies = joins && end - at > 2 && at[2] == '1';
        if (before == '&' || (first && joins) || (second && (!copies || stdout_too))) {
            return true;
        }
        stdout_too = stdout_too || first;
    }
    return false;
}

unsigned swx_command_hints(const swx_scan *scan, const uint8_t *text, size_t size, bool elsewhere)
{
    const unsigned flags = scan->flags;
    const bool exec = flags & SWX_SCAN_EXEC, prompt = flags & SWX_SCAN_PROMPT;
    const bool assigns = prompt && assigns_prompt(text, size), to_elsewhere = exec && redirects_stderr(text, size);
    const bool source = prompt || (elsewhere && (exec || flags & SWX_SCAN_PARSE_STATE));
    const bool settle = exec && (!elsewhere || memmem(text, size, ">(", 2));
    unsigned hints = flags;
    hints |= source ? SWX_HINT_SOURCE : 0;
    hints |= settle ? SWX_HINT_SETTLE : 0;
    hints |= assigns ? SWX_HINT_PROMPT : 0;
    hints |= assigns && exec && memchr(text, '<', size) ? SWX_HINT_LAST : 0;
    hints |= to_elsewhere ? SWX_HINT_STDERR : 0;
    hints |= (prompt || to_elsewhere) && !(flags & SWX_SCAN_UNKNOWN) ? SWX_HINT_HIDES : 0;
    return hints;
}

/* ---- delivery ---- */

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

swx_delivery swx_command_delivery(const swx_scan *scan, bool accepted, unsigned spoils, bool elsewhere)
{
    const unsigned flags = scan->flags;
    const bool editing = flags & SWX_SCAN_EDITING, several = flags & SWX_SCAN_MULTILINE;
    if (scan->verdict == SWX_EMPTY) {
        return SWX_DELIVERY_NONE;
    }
    const swx_delivery quoted =
        several && !editing && !(spoils & SWX_SPOILS_BRACE) ? SWX_DELIVERY_TOGETHER : SWX_DELIVERY_EVAL;
    swx_delivery way = several ? SWX_DELIVERY_GROUP : SWX_DELIVERY_PLAIN;
    if (flags & SWX_SCAN_BACKSLASH_END && !(flags & SWX_SCAN_LINE_END) && !accepted) {
        way = SWX_DELIVERY_DOCUMENT; /* bash accepts it but for a here-document that the text's end ends */
    } else if (flags & SWX_SCAN_BACKSLASH_END || (scan->verdict != SWX_COMPLETE && !accepted) ||
               (several && flags & SWX_SCAN_PARSE_STATE && !editing)) {
        way = SWX_DELIVERY_EVAL;
    } else if (flags & (SWX_SCAN_CONTROL | SWX_SCAN_LONG_LINE)) {
        way = elsewhere ? quoted : SWX_DELIVERY_RAW; /* a terminal elsewhere stays in canonical mode */
    }
    const bool typed = editing || (way == SWX_DELIVERY_PLAIN && scan->body_size + 1 < SWX_SHELL_READ);
    if (way < SWX_DELIVERY_EVAL && spoils & SWX_SPOILS_GROUP && !typed) {
        way = quoted;
    }
    if (way < SWX_DELIVERY_EVAL || !(spoils & SWX_SPOILS_EVAL)) {
        return way;
    }
    return way == SWX_DELIVERY_TOGETHER ? SWX_DELIVERY_SOURCE_TOGETHER : SWX_DELIVERY_SOURCE;
}

enum { PIECE = 900 /* bytes of quoted text in a typed line; what stands around them fits into SWX_SHELL_READ too */ };

/* Writes one byte of a $'...' piece, returns the bytes written, at most 4. */
static size_t escape(uint8_t c, uint8_t *out)
{
    if (c >= 0x20 && c < 0x7f && c != '\\' && c != '\'') {
        out[0] = c;
        return 1;
    }
    out[0] = '\\';
    if (c == '\n' || c == '\t' || c == '\\') {
        out[1] = c == '\n' ? 'n' : c == '\t' ? 't' : c;
        return 2;
    }
    out[1] = (uint8_t)('0' + (c >> 6));
    out[2] = (uint8_t)('0' + (c >> 3 & 7));
    out[3] = (uint8_t)('0' + (c & 7));
    return 4;
}

static size_t fill_piece(const uint8_t *text, size_t size, size_t *at, uint8_t piece[PIECE + 4])
{
    size_t used = 0;
    while (*at < size && used < PIECE) {
        used += escape(text[(*at)++], piece + used);
    }
    return used;
}

static void append_bytes(swx_buf *out, const uint8_t *bytes, size_t size, swx_status *status)
{
    *status = *status == SWX_OK ? swx_buf_append(out, bytes, size) : *status;
}

static void append(swx_buf *out, const char *text, swx_status *status)
{
    append_bytes(out, (const uint8_t *)text, strlen(text), status);
}

static swx_status encode_quoted(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out)
{
    const bool source = way >= SWX_DELIVERY_SOURCE;
    uint8_t piece[PIECE + 4];
    size_t at = 0, used = fill_piece(text, size, &at, piece);
    const bool words = at < size && !source, here_document = at < size && source;
    swx_status status = SWX_OK;
    /* Quoted, because an alias may have any name. */
    append(out, here_document ? "\\builtin source /dev/fd/63 63<<\\E\n" : "", &status);
    append(out, source ? "\\builtin source <(\\builtin printf %s " : "\\builtin eval ", &status);
    append(out, words ? "\\\\builtin eval " : "", &status);
    append(out, !source && size && text[0] == '-' ? "-- " : "", &status);
    append(out, words ? "'$'\\''" : "$'", &status);
    append_bytes(out, piece, used, &status);
    while (status == SWX_OK && at < size) {
        append(out, words ? "'\\''${-:0:0' \\\n'}$'\\''" : "'\\\n$'", &status);
        used = fill_piece(text, size, &at, piece);
        append_bytes(out, piece, used, &status);
    }
    /* At the end of an eval a backslash that quotes nothing makes bash 5.2 go on reading at the terminal, with a stale
     * prompt.  Twice it is one; in a here-document it is text, and a newline ends its line. */
    if (!source && ends_in_backslash(text, text + size)) {
        append(out, way == SWX_DELIVERY_DOCUMENT ? "\\n" : "\\\\", &status);
    }
    append(out, source ? "')\n" : words ? "'\\'\n" : "'\n", &status);
    append(out, here_document ? "E\n" : "", &status);
    return status;
}

static swx_status encode_body(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out)
{
    swx_scan scan;
    trim(text, size, &scan);
    const bool group = way != SWX_DELIVERY_PLAIN;
    swx_status status = SWX_OK;
    append(out, group ? "{\n" : "", &status);
    append_bytes(out, text + scan.body_start, scan.body_size, &status);
    append(out, group ? "\n}\n" : "\n", &status);
    return status;
}

swx_status swx_command_encode(swx_delivery way, const uint8_t *text, size_t size, swx_buf *out)
{
    static const uint8_t nothing[1] = { 0 };
    text = size ? text : nothing;
    if (way == SWX_DELIVERY_NONE || memchr(text, 0, size)) {
        return SWX_EINVAL;
    }
    swx_status status;
    if (way == SWX_DELIVERY_TOGETHER || way == SWX_DELIVERY_SOURCE_TOGETHER) {
        swx_buf group;
        swx_buf_init(&group, out->limit);
        status = encode_body(SWX_DELIVERY_GROUP, text, size, &group);
        status = status == SWX_OK ? encode_quoted(way, group.data, group.size - 1, out) : status;
        swx_buf_free(&group);
    } else {
        status = (way >= SWX_DELIVERY_EVAL ? encode_quoted : encode_body)(way, text, size, out);
    }
    return status == SWX_OK && swx_buf_dropped(out) ? SWX_ELIMIT : status;
}
