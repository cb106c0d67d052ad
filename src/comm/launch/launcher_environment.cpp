// Launchers may be nested (mpirun starts torchrun), and variables of an earlier one may be left over. The process has
// the variables of all. A launcher's variables appear where it started its child: the nearest ancestor without them
// shows how far inside it is. Ancestors are read only if several launchers set variables, or a rank started the
// process.
#include "comm/launch/launcher_environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "comm/launch/launch_flags.h"

namespace dtensor {
namespace {

// The variables of one launcher. Those in `others` show that it started another job with the same rank and size.
struct Source {
  const char *launcher, *rank, *size;
  bool mpi;
  std::vector<const char*> others;
};

// In the order in which they count where nothing shows which one is inner.
const std::vector<Source>& sources() {
  static const auto& all = *new std::vector<Source>{
      {"DTENSOR_RANK", "DTENSOR_RANK", "DTENSOR_WORLD_SIZE", false, {}},
      {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true, {"PMIX_NAMESPACE"}},
      {"mpirun", "PMI_RANK", "PMI_SIZE", true, {"PMI_FD", "PMI_PORT"}},
      {"torchrun", "RANK", "WORLD_SIZE", false, {"LOCAL_RANK", "TORCHELASTIC_RUN_ID"}},
      {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", false, {"SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"}}};
  return all;
}

std::string value(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// What a launcher states about this process.
struct Statement {
  const Source* source = nullptr;
  std::string size_name, rank, size;
  std::size_t level = 0;  // the innermost level that has the variables but whose parent has others

  bool complete() const { return !rank.empty() && !size.empty(); }
  bool explicitly_set() const { return source == &sources().front(); }
  bool by_slurm() const { return source == &sources().back(); }

  std::string str() const {
    const auto setting = [](const std::string& name, const std::string& text) {
      return name + (text.empty() ? " is not set" : "=" + text);
    };
    return setting(source->rank, rank) + ", " + setting(size_name, size);
  }

  LauncherEnvironment checked(const Variables& variables) const {
    const auto r = number(rank), s = number(size);
    if (r && s && *r >= 0 && *r < *s) {
      const bool mpi = source->mpi || (by_slurm() && !value(variables, "PMIX_RANK").empty());
      return {source->launcher, *r, *s, mpi};
    }
    throw LaunchError(str() + ": expected a rank below the number of processes, as " + source->launcher +
                      " sets them; set both or neither");
  }
};

std::size_t level_of(const std::vector<const char*>& names, const std::vector<Variables>& levels) {
  const auto parent_has = [&](std::size_t level) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return value(levels[level], name) == value(levels[level + 1], name); });
  };
  std::size_t level = 0;
  while (level + 1 < levels.size() && parent_has(level)) ++level;
  return level;
}

// Slurm sets some of its variables in an allocation too, outside of job steps, where the process is a single one.
std::vector<Statement> statements(const std::vector<Variables>& levels) {
  std::vector<Statement> all;
  for (const Source& source : sources()) {
    Statement s{&source, source.size, value(levels[0], source.rank), value(levels[0], source.size)};
    if (s.by_slurm() && s.size.empty()) s.size_name = "SLURM_NTASKS", s.size = value(levels[0], "SLURM_NTASKS");
    if (s.by_slurm() ? !s.complete() : s.rank.empty() && s.size.empty()) continue;
    std::vector<const char*> names{source.rank, source.size};
    names.insert(names.end(), source.others.begin(), source.others.end());
    s.level = level_of(names, levels);
    all.push_back(std::move(s));
  }
  return all;
}

// Without a size, two processes would each train alone. Rank 0 may be a single process that initialized MPI itself.
void check_pmix(const Variables& variables) {
  const std::string rank = value(variables, "PMIX_RANK");
  if (rank.empty() || rank == "0") return;
  throw LaunchError("PMIX_RANK=" + rank + ", but no variable gives the number of processes; start the program with " +
                    "mpirun, srun or torchrun, or set DTENSOR_RANK and DTENSOR_WORLD_SIZE");
}

// Launchers that started one job agree on its size, and so does a WORLD_SIZE that a batch script sets without a rank.
void check_agreement(const Statement& chosen, const Statement& other) {
  if (chosen.explicitly_set() || other.by_slurm() || other.size == chosen.size) return;
  throw LaunchError(chosen.str() + " (" + chosen.source->launcher + ") and " + other.str() + " (" +
                    other.source->launcher + ") disagree, and it is unknown which launcher started this process; " +
                    "unset the variables of the other one");
}

// Several jobs of a few ranks where one job was probably meant.
std::string smaller_job(const LauncherEnvironment& chosen, const Statement& outer) {
  const auto size = number(outer.size);
  if (!outer.complete() || outer.by_slurm() || !size || *size <= chosen.size) return "";
  return chosen.launcher + " started a job of " + std::to_string(chosen.size) + " inside each of the " + outer.size +
         " processes of " + outer.source->launcher + " (" + outer.str() + "): the jobs are separate";
}

// Data loaders, pools and subprocesses of a rank would join as the rank that started them.
void check_not_started_by_rank(const Statement& chosen, const std::vector<Variables>& levels) {
  const std::string process = value(levels[0], kRankProcess);
  if (process.empty() || level_of({kRankProcess}, levels) >= chosen.level) return;
  throw LaunchError("process " + process + ", which is a rank (" + chosen.str() + "), started this process, which is " +
                    "no rank and cannot communicate; start a program of its own with a launcher, or with " +
                    "DTENSOR_RANK=0 and DTENSOR_WORLD_SIZE=1");
}

Variables parsed(const char* begin, const char* end) {
  Variables variables;
  while (begin < end) {
    const std::string setting(begin, std::find(begin, end, '\0'));
    begin += setting.size() + 1;
    const auto equals = setting.find('=');
    if (equals != std::string::npos) variables.emplace(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return variables;
}

Variables own_variables() {
  Variables variables;
  for (char** setting = environ; setting != nullptr && *setting != nullptr; ++setting) {
    const std::string text = *setting;
    variables.merge(parsed(text.data(), text.data() + text.size()));
  }
  return variables;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// 0: none, or unknown. The name of the program, in parentheses, may contain anything.
int parent_of(int process) {
  const std::string stat = contents("/proc/" + std::to_string(process) + "/stat");
  int parent = 0;
  const auto name_end = stat.rfind(')');
  if (name_end != std::string::npos) std::sscanf(stat.c_str() + name_end + 1, " %*c %d", &parent);
  return parent;
}

}  // namespace

LauncherEnvironment innermost_launcher(const std::vector<Variables>& levels) {
  const auto all = statements(levels);
  if (all.empty()) return check_pmix(levels[0]), LauncherEnvironment{};
  const auto inner = [](const Statement& a, const Statement& b) { return a.level < b.level; };
  const std::size_t level = std::min_element(all.begin(), all.end(), inner)->level;
  std::vector<Statement> nearest;
  for (const auto& s : all) {
    if (s.level == level) nearest.push_back(s);
  }
  const auto complete = [](const Statement& s) { return s.complete(); };
  const auto found = std::find_if(nearest.begin(), nearest.end(), complete);
  const Statement& chosen = found == nearest.end() ? nearest.front() : *found;
  check_not_started_by_rank(chosen, levels);
  LauncherEnvironment environment = chosen.checked(levels[0]);
  for (const auto& other : nearest) {
    if (other.source != chosen.source) check_agreement(chosen, other);
  }
  for (const auto& outer : all) {
    if (outer.level != level && environment.warning.empty()) environment.warning = smaller_job(environment, outer);
  }
  return environment;
}

LauncherEnvironment launcher_environment() {
  std::vector<Variables> levels{own_variables()};
  if (value(levels[0], kRankProcess) == std::to_string(getpid())) levels[0].erase(kRankProcess);  // launches again
  if (statements(levels).size() < 2 && !levels[0].contains(kRankProcess)) return innermost_launcher(levels);
  for (int process = getpid(); process > 0; process = parent_of(process)) {
    const std::string started_with = contents("/proc/" + std::to_string(process) + "/environ");
    if (started_with.empty()) break;
    levels.push_back(parsed(started_with.data(), started_with.data() + started_with.size()));
  }
  return innermost_launcher(levels);
}

void mark_rank_process() { setenv(kRankProcess, std::to_string(getpid()).c_str(), 1); }

}  // namespace dtensor
