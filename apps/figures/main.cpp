// Draws the figures of the documentation: losses of apps/train under each usual layout and on one device, memory of
// a step on rank 0, and costs of long sequences that are split over ranks.
//
//   figures FOLDER [flags of train, as --steps 50 --hidden 32]
//   figures --long-sequences FOLDER [TOKENS]
#include "program.h"

int main(int argc, char** argv) { return figures::run_program(argc, argv); }
