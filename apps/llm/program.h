// The program llm: parses its command line, starts the ranks, runs a command.
#pragma once

namespace llm {

int run_program(int argc, char** argv);

}  // namespace llm
