// Verifies sharding rules by trial, without a communicator. For each operator it reports how many offered strategies
// are valid, which valid ones are not offered, and the bytes that the chosen one moves relative to the minimum. Samples
// are recorded calls (tools/aten_cases/FORMAT.md), forward and backward. --load takes a shared library with other
// operators and rules.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include <iostream>
#include <map>
#include <optional>

#include "aten_cases/selection.h"
#include "dtensor/rule.h"
#include "run_tool.h"

namespace {

using namespace dtensor;

struct Flags {
  cases::Selection selection = {};
  std::string load;
  bool missing = false;
};

struct Totals {
  int offered = 0, sound = 0, by_kernel = 0, unsound = 0, missing = 0, runs = 0, lean = 0;
  double worst = 1;
  void add(const RuleReport& r) {
    offered += r.offered, sound += r.sound, by_kernel += r.by_kernel;
    unsound += static_cast<int>(r.unsound.size()), missing += static_cast<int>(r.missing.size());
    for (const double ratio : r.bytes) {
      ++runs, lean += ratio <= 1.25;
      worst = std::max(worst, ratio);
    }
  }
};

std::ostream& operator<<(std::ostream& out, const Totals& t) {
  return out << t.offered << " offered, " << t.sound << " sound, " << t.by_kernel << " by a local kernel, " << t.unsound
             << " unsound, " << t.missing << " not offered; " << t.lean << " of " << t.runs
             << " within 1.25 of the best bytes, worst " << t.worst;
}

Totals verify_case(const cases::Case& c, const Flags& flags, bool search) {
  const auto name = c10::toString(c.handle().operator_name());
  const auto args = c.arguments([](const at::Tensor& t) { return t; });
  Totals totals;
  for (const std::int64_t ranks : {2, 3, 4}) {
    const RuleReport report = verify_rule(name, {args.begin(), args.end()}, ranks, search);
    if (!report.by_rule) return totals;
    totals.add(report);
    for (const auto& text : report.unsound)
      std::cout << "UNSOUND on " << ranks << " " << c.text() << "\n    " << text << "\n";
    for (const auto& text : report.missing) {
      if (flags.missing) std::cout << "MISSING on " << ranks << " " << c.text() << "\n    " << text << "\n";
    }
  }
  for (const auto& text : verify_rule_on_mesh(name, {args.begin(), args.end()}, {2, 2})) {
    ++totals.unsound;
    std::cout << "UNSOUND on [2, 2] " << c.text() << "\n    " << text << "\n";
  }
  return totals;
}

// Runs in a child process; returns nothing if it crashed.
std::optional<Totals> verify_isolated(const cases::Case& c, const Flags& flags, bool search) {
  int ends[2];
  TORCH_CHECK(pipe(ends) == 0, "no pipe");
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    const Totals totals = verify_case(c, flags, search);
    std::cout.flush();
    _exit(write(ends[1], &totals, sizeof totals) == sizeof totals ? 0 : 1);
  }
  close(ends[1]);
  Totals totals;
  const bool full = read(ends[0], &totals, sizeof totals) == sizeof totals;
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return full ? std::optional(totals) : std::nullopt;
}

void add(Totals& to, const Totals& t) {
  to.offered += t.offered, to.sound += t.sound, to.by_kernel += t.by_kernel, to.unsound += t.unsound;
  to.missing += t.missing, to.runs += t.runs, to.lean += t.lean, to.worst = std::max(to.worst, t.worst);
}

int run(const Flags& flags) {
  TORCH_CHECK(flags.load.empty() || dlopen(flags.load.c_str(), RTLD_NOW), "cannot load ", flags.load, ": ", dlerror());
  at::set_num_threads(1);  // Child processes have no thread pool.
  std::map<std::string, Totals> per_op;
  Totals all;
  bool any = false;
  for (const auto& c : cases::load_cases(flags.selection.data)) {
    if (!flags.selection.takes(c)) continue;
    any = true;
    auto totals = verify_isolated(c, flags, true);
    if (!totals) totals = verify_isolated(c, flags, false);
    if (!totals) {
      std::cout << "NOT VERIFIED " << c.text() << "\n";
      continue;
    }
    if (totals->offered == 0) continue;  // The operator has no rule.
    add(per_op[c.op()], *totals);
    add(all, *totals);
  }
  flags.selection.check_any(any);
  for (const auto& [op, totals] : per_op) std::cout << op << ": " << totals << "\n";
  std::cout << "all: " << all << std::endl;
  return all.unsound == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Compares sharding rules with all valid strategies of recorded calls.", "verify_rules");
  flags.selection.add_flags(app);
  app.add_option("--load", flags.load, "a shared library with additional operators and rules");
  app.add_flag("--missing", flags.missing, "list valid strategies that are not offered");
  return dtensor::run_tool(app, argc, argv, [&] { return run(flags); });
}
