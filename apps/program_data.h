// Files that the programs read: presets and hardware tables of plan, the tokenizer of train.
#pragma once

#include <string>

// The path of a file or folder, relative to apps/ in the source folder and to share/dtensor of an installation.
std::string program_data(const std::string& path);
