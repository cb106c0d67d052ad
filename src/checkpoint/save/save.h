// A save in three steps: layout (collective), writing of this rank's part, renaming (collective).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/format/checksum.h"
#include "checkpoint/format/files/folder_lock.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/local_part.h"
#include "checkpoint/save/manifest.h"
#include "dtensor/checkpoint.h"

namespace dtensor::files {

class Saver {
 public:
  // Collective: merges the manifests, computes the layout, locks the folder and creates the temporary folder.
  Saver(std::string directory, const Communicator& ranks, const StateTensors& tensors, const CheckpointValues& values,
        const SaveOptions& options);

  // Replaces the tensors by copies of what this rank will write. Collective if prepare_for_write() is. finish() reports
  // errors.
  void copy_parts();
  // Writes this rank's part. Collective if prepare_for_write() is, unless parts were copied. Does not throw; finish()
  // reports errors.
  void write() noexcept;
  // Collective: returns when all ranks have written; on errors it removes the temporary folder and throws on all ranks.
  // `before_waiting` runs once all ranks have arrived; from then on there is no timeout for slow disks.
  void finish(const std::function<void()>& before_waiting = {});
  void drop() noexcept;  // removes the temporary folder on the rank that created it

 private:
  Part part(std::size_t index) const;
  void write_part(const Part& part, std::size_t index);
  void keep_error(const std::function<void()>& fn);
  void check_sums();

  std::string begin(const std::string& directory);

  std::string directory_, temporary_, what_;
  std::unique_ptr<FolderLock> lock_;  // on the rank that creates the folder
  Communicator ranks_;
  SaveOptions options_;
  Manifest manifest_;
  FileLayout file_layout_;
  std::vector<at::Tensor> tensors_;  // in manifest order; undefined: not listed by this rank
  std::vector<Part> parts_;          // after copy_parts()
  std::vector<Checksum> own_;        // of the elements that this rank owns, in manifest order
  std::string error_;
};

}  // namespace dtensor::files
