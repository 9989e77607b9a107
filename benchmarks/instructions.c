/* instructions.c: lets a process under callgrind say what of it is counted; loaded by instructions.py.
 *
 * Between begin and end every instruction of all threads is counted, and end writes the count to callgrind's file.
 * Outside of callgrind both do nothing.
 */
#include <valgrind/callgrind.h>

void begin(void)
{
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

void end(void)
{
    CALLGRIND_STOP_INSTRUMENTATION;
    CALLGRIND_DUMP_STATS;
}
