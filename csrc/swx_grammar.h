/* swx_grammar.h: proves that a text is whole bash commands, by reading it as bash would.
 *
 * Proved are words with quotes, $name, ${ }, $( ), <( ) and `...`; $(( )) and (( )) of names and numbers; name=( ) of
 * words on one line; redirections and here-documents; pipelines and lists; ( ), { }, if, while, until, for, name(), and
 * [[ ]] of one test of plain words.  About all else bash has to be asked: case, indices, select, coproc, =~, extended
 * patterns, two here-documents in a line, a line joined in the middle of a word. */
#ifndef SWX_GRAMMAR_H
#define SWX_GRAMMAR_H

#include "swx_command.h"

/* Classes of bytes; the table is also what the facts of a text go by. */
enum { BLANK = 1, META = 2, SPECIAL = 4, NAME = 8, DIGIT = 16, CONTROL = 32 };
extern const uint8_t swx_class[256];

/* Reads a text that has no NUL byte and does not begin with a joined line; text is not NULL.
 *
 * EMPTY or COMPLETE: adds to *flags what it has seen of SWX_SCAN_BACKGROUND, SWX_SCAN_PARSE_STATE (it runs `.`) and
 * SWX_SCAN_UNKNOWN.  UNSURE: *stop is the offset at which it gave up. */
swx_verdict swx_grammar_read(const uint8_t *text, size_t size, unsigned *flags, size_t *stop);

/* Where the first pipelines of a text end, whatever follows: before the newline, or behind the here-document's last
 * line.  0 if that is not proved.  A NUL byte is a letter here, because programs' output is read too. */
size_t swx_grammar_first(const uint8_t *text, size_t size);

#endif
