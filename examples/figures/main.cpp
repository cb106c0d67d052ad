// Draws the figures of the documentation anew: the transformer of examples/train under each usual layout, its loss
// beside one device's, and what a step holds on rank 0; and what long sequences cost when they are split over ranks.
//
//   figures FOLDER [flags of train, as --steps 50 --hidden 32]
//   figures --long-sequences FOLDER [TOKENS]
#include "program.h"

int main(int argc, char** argv) { return figures::run_program(argc, argv); }
