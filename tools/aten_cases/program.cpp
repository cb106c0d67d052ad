// The command line of aten_cases, and the walk over the cases.
#include "aten_cases/program.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <iostream>
#include <map>
#include <thread>

#include "aten_cases/run_case.h"
#include "aten_cases/selection.h"
#include "run_tool.h"

namespace dtensor::cases {
namespace {

struct Flags {
  Selection selection = {.data = DTENSOR_CASES};
  std::string config;
  int id = -1, ranks = 4, from = 0;
  double seconds = 60;
  bool table = false;
};

struct Counts {
  int pass = 0, wrong = 0, raise = 0;
  void add(Outcome::Kind kind) {
    if (kind == Outcome::Kind::pass) ++pass;
    if (kind == Outcome::Kind::wrong) ++wrong;
    if (kind == Outcome::Kind::raise) ++raise;
  }
};

// Ends the program, with the name of the case, when one takes too long.
class Watchdog {
 public:
  explicit Watchdog(double seconds) : thread_([this, seconds] { watch(seconds); }) {}
  ~Watchdog() {
    over_ = true;
    thread_.join();
  }
  void start(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
    since_ = std::chrono::steady_clock::now();
  }

 private:
  void watch(double seconds) {
    while (!over_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const std::lock_guard lock(mutex_);
      if (std::chrono::steady_clock::now() - since_ < std::chrono::duration<double>(seconds)) continue;
      std::cout << "HANGS " << text_ << std::endl;
      std::_Exit(3);
    }
  }
  std::mutex mutex_;
  std::string text_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// A crash names its case too.
char current[512];
void on_crash(int) {
  const char* text = "CRASHES ";
  (void)!write(STDOUT_FILENO, text, strlen(text));
  (void)!write(STDOUT_FILENO, current, strlen(current));
  (void)!write(STDOUT_FILENO, "\n", 1);
  std::_Exit(4);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find("\nException raised")); }

int run(const Flags& flags, const std::vector<Case>& cases) {
  std::signal(SIGSEGV, on_crash);
  std::signal(SIGABRT, on_crash);
  Watchdog watchdog(flags.seconds);
  std::map<std::string, Counts> per_op;
  Counts all;
  for (const Case& c : cases) {
    if (!flags.selection.takes(c) || (flags.id >= 0 && c.id() != flags.id) || c.id() < flags.from) continue;
    for (const Config* config : distinct_configs(c)) {
      if (!flags.config.empty() && config->name != flags.config) continue;
      const std::string text = config->name + " " + c.text();
      watchdog.start(text);
      std::strncpy(current, text.c_str(), sizeof current - 1);
      const Outcome outcome = run_case(c, *config, flags.ranks);
      per_op[c.op()].add(outcome.kind);
      all.add(outcome.kind);
      if (outcome.kind == Outcome::Kind::pass) continue;
      std::cout << (outcome.kind == Outcome::Kind::wrong ? "WRONG " : "RAISE ") << config->name << " " << c.text()
                << "\n    " << first_line(outcome.text) << std::endl;
    }
  }
  flags.selection.check_any(!per_op.empty());
  for (const auto& [op, counts] : per_op) {
    if (!flags.table && counts.wrong + counts.raise == 0) continue;
    std::cout << op << ": " << counts.pass << " pass, " << counts.wrong << " wrong, " << counts.raise << " raise\n";
  }
  std::cout << all.pass << " pass, " << all.wrong << " wrong, " << all.raise << " raise" << std::endl;
  return all.wrong + all.raise == 0 ? 0 : 1;
}

}  // namespace

int run_program(int argc, char** argv) {
  Flags flags;
  CLI::App app("Recorded calls of ATen operators, sharded, against one device.", "aten_cases");
  flags.selection.add_flags(app);
  app.add_option("--config", flags.config, "only this placement: R S0 Sl S0_first Sl_first P 2d_S0_Sl 2d_P_S0");
  app.add_option("--id", flags.id, "only this case");
  app.add_option("--from", flags.from, "only cases from this number on (after a crash)");
  app.add_option("--ranks", flags.ranks, "thread ranks")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", flags.seconds, "a case that takes longer ends the program")->check(CLI::PositiveNumber);
  app.add_flag("--table", flags.table, "all operators, not only those that fail");
  return run_tool(app, argc, argv, [&] { return run(flags, load_cases(flags.selection.data)); });
}

}  // namespace dtensor::cases
