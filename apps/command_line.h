// What the command lines of the examples share.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

namespace command_line {

// The error of a text that is no finite number for which `fits` holds. CLI11's own checks print the largest double with
// 309 digits.
template <class Fits>
CLI::Validator number_check(const std::string& expected, const char* name, Fits fits) {
  const auto error = [=](const std::string& text) {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    return number && fits(value) ? std::string() : "expected a " + expected + ", got " + text;
  };
  return CLI::Validator([=](std::string& text) { return error(text); }, name);
}

inline CLI::Validator positive() {
  return number_check("positive number", "POSITIVE", [](double value) { return value > 0; });
}
inline CLI::Validator non_negative() {
  return number_check("number of at least 0", "NONNEGATIVE", [](double value) { return value >= 0; });
}

// Adds flags under headings of --help. A group is a heading and a function that adds its flags to `target`.
template <class Target>
using FlagGroup = std::pair<const char*, void (*)(CLI::App&, Target&)>;

template <class Target>
void add_groups(CLI::App& app, Target& target, std::initializer_list<FlagGroup<Target>> groups) {
  for (const auto& [heading, add] : groups) {
    app.option_defaults()->group(heading);
    add(app, target);
  }
}

// The text of a parse error. CLI11 lists unknown arguments from the last to the first.
inline std::string error_text(const CLI::App& app, const CLI::Error& error) {
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) return error.what();
  const auto unknown = app.remaining(/*recurse=*/true);
  return std::string(unknown.size() > 1 ? "unknown arguments: " : "unknown argument: ") +
         CLI::detail::join(unknown, " ");
}

// For programs that call CLI::App::exit().
inline std::string failure_message(const CLI::App* app, const CLI::Error& error) {
  return error_text(*app, error) + "\nRun with --help for more information.\n";
}

}  // namespace command_line
