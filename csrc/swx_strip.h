/* swx_strip.h: plain text from terminal output, as a stream.
 *
 * Removed, whole, wherever the input is cut (ECMA-48 sections 5.3 to 5.6; ECMA-35 for nF; xterm's ctlseqs for BEL as
 * the end of an OSC):
 *
 *   CSI      ESC [  parameters 0x30-0x3f, intermediates 0x20-0x2f, one final byte 0x40-0x7e
 *   strings  ESC ] (OSC), ESC P (DCS), ESC X (SOS), ESC ^ (PM), ESC _ (APC), up to ESC \; an OSC also up to BEL
 *   nF       ESC, one or more of 0x20-0x2f, one final byte 0x30-0x7e
 *   others   ESC and one byte of 0x30-0x7e (Fp, Fe, Fs), such as ESC 7, ESC =, ESC c, ESC M
 *
 * The result has no ESC and no C1 control but NEL (U+0085, an end of a line), so that nothing in it can act on a
 * terminal, and filtering it again changes nothing:
 *
 *   - Of what is no such sequence only the ESC goes; its text stays.  A CSI, nF or two-byte sequence ends before the
 * first byte that cannot continue it (CAN, SUB and newlines among them).  A string ends before CAN, SUB, an ESC that no
 *     backslash follows and, if it is an OSC, a newline.  Any sequence ends when SWX_STRIP_HELD bytes of it have come
 * and its end has not (a large image, for example), and at the end of the stream.  Reading goes on with the byte before
 *     which it ended; an ESC there begins a new sequence.
 *   - A C1 control in UTF-8 (C2 and 80-9f, not 85) loses the C2.  What is left is invalid UTF-8, as a bare byte 80-9f
 * of the input is, which a decoder shows as \x9b.  Where that would make another C1 with a C2 before it, it goes whole.
 *
 * Everything else passes through: BEL, BS, CR, NUL, invalid UTF-8.
 *
 * No allocation.  A state belongs to one caller at a time; different states are independent.
 */
#ifndef SWX_STRIP_H
#define SWX_STRIP_H

#include "swx.h"

/* The longest sequence that is recognised, in bytes, its introducer and end included; and the most that a call may
 * write beyond the size of its input, which is what was held back before it. */
#define SWX_STRIP_HELD 4096

typedef struct {
    uint8_t held[SWX_STRIP_HELD]; /* an unfinished sequence, so that it can be given back */
    size_t size;                  /* bytes of it */
    uint8_t phase;                /* private */
    bool lead;                    /* a C2 is held back, in front of `held`, until the byte after it is known */
    bool stray;                   /* the last byte written is a C2 that begins no character */
} swx_strip;

/* Whether filtering could change these bytes. */
bool swx_strip_needed(const uint8_t *bytes, size_t size);

/* A state of zeros is new too. */
void swx_strip_init(swx_strip *strip);

/* Filters size bytes into out, which has room for size + SWX_STRIP_HELD bytes and does not overlap in.
 * Returns the number of bytes written.  in may be NULL when size is 0. */
size_t swx_strip_feed(swx_strip *strip, const uint8_t *in, size_t size, uint8_t *out);

/* The end of the stream: writes what is held back (at most SWX_STRIP_HELD bytes), as feed does.  The state is then as
 * new. */
size_t swx_strip_finish(swx_strip *strip, uint8_t *out);

/* Filters a whole stream in place; returns its new size, which is never larger.  With crlf, each CR LF of the result
 * becomes LF; other CRs stay. */
size_t swx_strip_whole(uint8_t *data, size_t size, bool crlf);

#endif
