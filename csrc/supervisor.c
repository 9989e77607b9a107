/* The executable that swx_supervisor_start starts: the program's pidfd is descriptor 0, its mark the only argument. */
#include <stdlib.h>

#include "swx_supervisor.h"

int main(int argc, char **argv)
{
    uint64_t mark = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    swx_supervisor_run(0, mark);
    return 0;
}
