// Which launcher counts where several have set variables: nested launchers, and variables that are left over.
#include <gtest/gtest.h>

#include <sstream>

#include "comm/launch/launch_flags.h"
#include "comm/launch/launcher_environment.h"

namespace dtensor::test {
namespace {

// "RANK=0 WORLD_SIZE=2"
Variables variables_of(const std::string& text) {
  Variables variables;
  std::istringstream in(text);
  for (std::string setting; in >> setting;) {
    const auto equals = setting.find('=');
    variables[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return variables;
}

struct Launcher {
  const char* name;
  const char* reported;      // LauncherEnvironment::launcher
  const char* settings;      // with # for the rank and @ for the size
  bool counts_last = false;  // where the levels do not show which launcher is inner
};

const std::vector<Launcher> kLaunchers{
    {"Open MPI", "mpirun", "OMPI_COMM_WORLD_RANK=# OMPI_COMM_WORLD_SIZE=@ PMIX_RANK=# PMIX_NAMESPACE=1.@"},
    {"MPICH", "mpirun", "PMI_RANK=# PMI_SIZE=@ PMI_FD=9"},
    {"srun", "srun", "SLURM_PROCID=# SLURM_NTASKS=@ SLURM_STEP_NUM_TASKS=@ SLURM_JOB_ID=7", true},
    {"srun with PMI-2", "mpirun", "SLURM_PROCID=# SLURM_STEP_NUM_TASKS=@ PMI_RANK=# PMI_SIZE=@ PMI_FD=9"},
    {"torchrun", "torchrun", "RANK=# WORLD_SIZE=@ LOCAL_RANK=# TORCHELASTIC_RUN_ID=none"},
    {"RANK and WORLD_SIZE", "torchrun", "RANK=# WORLD_SIZE=@"},
    {"DTENSOR variables", "DTENSOR_RANK", "DTENSOR_RANK=# DTENSOR_WORLD_SIZE=@"}};

struct Started {
  const Launcher& launcher;
  int rank, size;
  Variables variables() const {
    std::string text;
    for (const char c : std::string(launcher.settings)) {
      text += c == '#' ? std::to_string(rank) : c == '@' ? std::to_string(size) : std::string(1, c);
    }
    return variables_of(text);
  }
};

// The levels of a process that the last launcher started, which the one before started, and so on. A shell that sets
// no variables is between them.
std::vector<Variables> nested(const std::vector<Started>& outer_to_inner) {
  std::vector<Variables> levels{variables_of("HOME=/root")};
  for (const auto& started : outer_to_inner) {
    Variables all = started.variables();
    all.merge(Variables(levels.front()));
    levels.insert(levels.begin(), {all, all});
  }
  return levels;
}

std::string str(const LauncherEnvironment& e) {
  return e.launcher + " " + std::to_string(e.rank) + "/" + std::to_string(e.size);
}

std::string str(const Started& s) {
  return std::string(s.launcher.reported) + " " + std::to_string(s.rank) + "/" + std::to_string(s.size);
}

// What innermost_launcher() returns, or "error: " and its message.
std::string outcome(const std::vector<Variables>& levels) {
  try {
    return str(innermost_launcher(levels));
  } catch (const LaunchError& error) {
    return std::string("error: ") + error.what();
  }
}

TEST(Launcher, IsFoundAlone) {
  EXPECT_EQ(outcome({{}}), " 0/1");
  for (const auto& launcher : kLaunchers) {
    for (const auto& [rank, size] : {std::pair{0, 1}, {0, 3}, {2, 3}}) {
      const Started started{launcher, rank, size};
      EXPECT_EQ(outcome(nested({started})), str(started)) << launcher.name;
      EXPECT_EQ(outcome({started.variables()}), str(started)) << launcher.name;
    }
  }
}

TEST(Launcher, InnermostOfTwoCounts) {
  for (const auto& outer : kLaunchers) {
    for (const auto& inner : kLaunchers) {
      for (const auto& [of, n] : {std::pair{1, 2}, {2, 1}, {2, 2}, {4, 2}}) {
        const Started started{inner, n - 1, n};
        EXPECT_EQ(outcome(nested({{outer, 0, of}, started})), str(started))
            << inner.name << " of " << n << " inside " << outer.name << " of " << of;
      }
    }
  }
}

TEST(Launcher, InnermostOfThreeCounts) {
  for (const auto& outer : kLaunchers) {
    for (const auto& middle : kLaunchers) {
      for (const auto& inner : kLaunchers) {
        const Started started{inner, 1, 3};
        EXPECT_EQ(outcome(nested({{outer, 0, 2}, {middle, 0, 1}, started})), str(started))
            << inner.name << " inside " << middle.name << " inside " << outer.name;
      }
    }
  }
}

// A rank of the inner job may have the same numbers as variables that were left over, other ranks of it have not.
TEST(Launcher, LeftoverWithTheSameNumbersDoesNotHideTheLauncher) {
  for (const std::size_t i : {0, 1, 2, 4}) {
    const Started started{kLaunchers[i], 0, 2};
    Variables leftover;
    for (const auto& [name, value] : started.variables()) {
      const bool number = name.ends_with("RANK") || name.ends_with("SIZE") || name.starts_with("SLURM_");
      if (number && name != "SLURM_JOB_ID" && name != "LOCAL_RANK") leftover[name] = value;
    }
    std::vector<Variables> levels = nested({{kLaunchers[i == 4 ? 0 : 4], 0, 3}, started});
    for (std::size_t outer = 2; outer < levels.size(); ++outer) levels[outer].merge(Variables(leftover));
    EXPECT_EQ(outcome(levels), str(started)) << kLaunchers[i].name;
  }
}

// Parents cannot be read where they belong to another user, or are outside of the container.
TEST(Launcher, DifferentSizesWithoutReadableParentsAreAnError) {
  for (const auto& a : kLaunchers) {
    for (const auto& b : kLaunchers) {
      Variables both = Started{b, 1, 2}.variables();
      const Variables alone = Started{a, 0, 1}.variables();
      bool overlap = false;
      for (const auto& [name, value] : alone) overlap = overlap || !both.emplace(name, value).second;
      if (overlap) continue;
      const std::string where = std::string(a.name) + " of 1 and " + b.name + " of 2", got = outcome({both});
      const auto is_explicit = [](const Launcher& l) { return l.reported == std::string("DTENSOR_RANK"); };
      if (is_explicit(a) || b.counts_last) {
        EXPECT_EQ(got, str(Started{a, 0, 1})) << where;
      } else if (is_explicit(b) || a.counts_last) {
        EXPECT_EQ(got, str(Started{b, 1, 2})) << where;
      } else {
        EXPECT_EQ(got.find("error: "), 0U) << where << ": " << got;
        EXPECT_NE(got.find("SIZE=1 (" + std::string(a.reported)), std::string::npos) << where << ": " << got;
        EXPECT_NE(got.find("SIZE=2 (" + std::string(b.reported)), std::string::npos) << where << ": " << got;
      }
    }
  }
}

// All ranks must make the same choice, whatever ranks the launchers gave them.
TEST(Launcher, EqualSizesWithoutReadableParentsAreOneChoice) {
  for (const auto& a : kLaunchers) {
    for (const auto& b : kLaunchers) {
      std::string chosen;
      for (const auto& [first, second] : {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}}) {
        Variables both = Started{a, first, 2}.variables();
        both.merge(Started{b, second, 2}.variables());
        const auto e = innermost_launcher({both});
        EXPECT_EQ(e.size, 2);
        if (chosen.empty()) chosen = e.launcher;
        EXPECT_EQ(e.launcher, chosen) << a.name << " and " << b.name;
      }
    }
  }
}

// Rows: variables of the process, and the outcome or a part of the error.
TEST(Launcher, MisfitsAreErrors) {
  const std::string order = "expected a rank below the number of processes";
  const std::vector<std::pair<std::string, std::string>> rows{
      {"RANK=0", "RANK=0, WORLD_SIZE is not set: " + order},
      {"WORLD_SIZE=2", "RANK is not set, WORLD_SIZE=2: " + order},
      {"RANK=2 WORLD_SIZE=2", "RANK=2, WORLD_SIZE=2: " + order},
      {"RANK=-1 WORLD_SIZE=2", "RANK=-1, WORLD_SIZE=2: " + order},
      {"RANK=0 WORLD_SIZE=0", order},
      {"RANK=0 WORLD_SIZE=-2", order},
      {"RANK=0 WORLD_SIZE=two", order},
      {"RANK=0 WORLD_SIZE=2.0", order},
      {"RANK=0x1 WORLD_SIZE=2", order},
      {"RANK=0 WORLD_SIZE=99999999999999999999", order},
      {"DTENSOR_RANK=1", "DTENSOR_RANK=1, DTENSOR_WORLD_SIZE is not set: " + order},
      {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK is not set, OMPI_COMM_WORLD_SIZE=2: " + order},
      {"PMI_RANK=2 PMI_SIZE=2", "PMI_RANK=2, PMI_SIZE=2: " + order},
      {"SLURM_PROCID=3 SLURM_NTASKS=2", "SLURM_PROCID=3, SLURM_NTASKS=2: " + order},
      {"PMIX_RANK=1", "PMIX_RANK=1, but no variable gives the number of processes"},
      {"PMIX_RANK=0 PMIX_NAMESPACE=1.2", " 0/1"},  // also set by a single process that initializes MPI
      {"SLURM_NTASKS=8", " 0/1"},                  // an allocation without a step
      {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1", "srun 0/1"},  // a batch script
      {"SLURM_PROCID=1 SLURM_NTASKS=4 WORLD_SIZE=4", "srun 1/4"},
      {"SLURM_PROCID=1 SLURM_NTASKS=4 WORLD_SIZE=8", "(srun) and RANK is not set, WORLD_SIZE=8 (torchrun) disagree"},
      {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 WORLD_SIZE=2", "mpirun 0/2"},
      {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 WORLD_SIZE=x", "disagree"},
      {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 RANK=0", "disagree"}};
  for (const auto& [variables, expected] : rows) {
    const std::string got = outcome({variables_of(variables)});
    const bool is_error = got.find("error: ") == 0;
    EXPECT_TRUE(is_error ? got.find(expected) != std::string::npos : got == expected) << variables << ": " << got;
  }
}

// Inconsistent variables of a launcher that does not count do not matter.
TEST(Launcher, MisfitsOutsideOfTheInnermostAreIgnored) {
  for (const char* outside : {"WORLD_SIZE=4", "RANK=7", "RANK=x WORLD_SIZE=y", "RANK=0 WORLD_SIZE=8"}) {
    const Variables outer = variables_of(outside);
    Variables inner = Started{kLaunchers[0], 1, 2}.variables();
    inner.merge(Variables(outer));
    EXPECT_EQ(outcome({inner, inner, outer, {}}), "mpirun 1/2") << outside;
  }
}

// A rank marks its own variables, so the processes that it starts have the mark from the start.
TEST(Launcher, ProcessesOfARankAreNoRanks) {
  for (const auto& launcher : kLaunchers) {
    const Started started{launcher, 1, 2};
    Variables marked = started.variables();
    marked["DTENSOR_RANK_PROCESS"] = "77";
    std::vector<Variables> child{marked, marked, started.variables(), {}};
    const std::string error = outcome(child);
    EXPECT_NE(error.find("error: process 77, which is a rank ("), std::string::npos) << launcher.name << ": " << error;
    for (const auto& inner : kLaunchers) {  // a launcher that a rank starts
      const Started own{inner, 2, 3};
      Variables variables = own.variables();
      variables.merge(Variables(marked));
      std::vector<Variables> levels = child;
      levels.insert(levels.begin(), {variables, variables});
      EXPECT_EQ(outcome(levels), str(own)) << inner.name << " inside " << launcher.name;
    }
    marked["DTENSOR_RANK"] = "0", marked["DTENSOR_WORLD_SIZE"] = "1";
    EXPECT_EQ(outcome({marked, marked, started.variables(), {}}), "DTENSOR_RANK 0/1") << launcher.name;
  }
  EXPECT_EQ(outcome({variables_of("DTENSOR_RANK_PROCESS=77")}), " 0/1");
}

// Each process of the outer launcher would train alone.
TEST(Launcher, WarnsOfSeparateJobs) {
  const auto warning = [](int outer, int inner) {
    return innermost_launcher(nested({{kLaunchers[0], 1, outer}, {kLaunchers[4], 0, inner}})).warning;
  };
  EXPECT_EQ(warning(2, 1),
            "torchrun started a job of 1 inside each of the 2 processes of mpirun (OMPI_COMM_WORLD_RANK=1, "
            "OMPI_COMM_WORLD_SIZE=2): the jobs are separate");
  EXPECT_EQ(warning(1, 2), "");
  EXPECT_EQ(warning(2, 2), "");
}

}  // namespace
}  // namespace dtensor::test
