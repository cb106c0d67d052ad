// The reader accepts exactly the files that the reference implementation accepts (recorded by
// tools/safetensors/record.py).
#include <gtest/gtest.h>

#include "checkpoint/folder.h"
#include "support/data.h"

namespace dtensor::test {
namespace {

// Decodes one byte per UTF-8 character.
std::string bytes_of(const std::string& utf8) {
  std::string bytes;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto c = static_cast<unsigned char>(utf8[i]);
    bytes += c < 0x80 ? utf8[i] : static_cast<char>(((c & 3) << 6) | (utf8[++i] & 0x3F));
  }
  return bytes;
}

TEST(Reference, AgreesOnEveryRecordedFile) {
  const Folder folder;
  std::ifstream in(data_path("oracles/safetensors.json"));
  const auto recorded = nlohmann::json::parse(in);
  int opened = 0, refused = 0, listed = 0;
  for (const auto& c : recorded.at("cases")) {
    const std::string file = bytes_of(c.at("file").get<std::string>()), path = folder / "x.safetensors";
    std::ofstream(path, std::ios::binary) << file;
    bool opens = true, loads = true;
    std::string error;
    try {
      for (const CheckpointEntry& e : read_checkpoint_index(path).entries) {
        loads = loads && e.dtype != at::ScalarType::Undefined;
      }
    } catch (const c10::Error& e) {
      opens = loads = false;
      error = e.what_without_backtrace();
      EXPECT_NE(error.find(path), std::string::npos) << error;
    }
    // Files that the reference opens but cannot load (unknown dtype or size) may be refused at opening here.
    EXPECT_EQ(loads, c.at("loads").get<bool>()) << c.dump() << "\n" << error;
    EXPECT_TRUE(c.at("opens").get<bool>() || !opens) << c.dump();
    ++(loads ? opened : opens ? listed : refused);
  }
  EXPECT_GE(opened, 100);
  EXPECT_GE(refused, 200);
  EXPECT_GE(listed, 4);  // F6 and odd F4
}

TEST(Reference, DeeplyNestedJsonDoesNotOverflowTheStack) {
  const Folder folder;
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 200'000; ++i) deep += open;
    const std::string header = "{\"a\":" + deep;
    const std::uint64_t length = header.size();
    std::ofstream(folder / "x.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), 8) << header;
    EXPECT_THROW(read_checkpoint_index(folder / "x.safetensors"), c10::Error);
    std::filesystem::create_directories(folder / "d");
    for (const char* name : {"model.safetensors.index.json", "checkpoint.json"}) {
      const std::string path = (folder / "d/") + name;
      std::ofstream(path) << deep;
      EXPECT_THROW(read_checkpoint_index(folder / "d"), c10::Error);
      std::filesystem::remove(path);
    }
  }
}

// Saves and loads every dtype that the format and ATen share; ATen stores F4 in pairs.
TEST(Reference, EveryDtypeRoundTrips) {
  const Folder folder;
  run_local(2, [&](Communicator world) {
    for (const auto dtype : {at::ScalarType::Float8_e4m3fnuz, at::ScalarType::Float8_e5m2fnuz,
                             at::ScalarType::Float8_e8m0fnu, at::ScalarType::Float4_e2m1fn_x2}) {
      Draw draw(5);
      const at::Tensor bits = any_bits(draw, {3, 5}, dtype), back = at::empty({3, 5}, dtype);
      save_state(folder / "c", world, {{"x", bits}}, {}, kQuick);
      load_state(folder / "c", world, {{"x", back}});
      EXPECT_EQ(bits_of(back), bits_of(bits)) << dtype;
      const Raw raw = parse_safetensors(folder / "c/model.safetensors").at("x");
      EXPECT_EQ(raw.sizes, dtype == at::ScalarType::Float4_e2m1fn_x2 ? (Shape{3, 10}) : (Shape{3, 5}));
    }
  });
}

TEST(Reference, DtypeThatATenLacksIsNamedAtLoad) {
  const Folder folder;
  const std::string header = R"({"x":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})";
  const std::uint64_t length = header.size();
  std::ofstream(folder / "x.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), 8) << header << "abc";
  const auto index = read_checkpoint_index(folder / "x.safetensors");
  EXPECT_EQ(index.entries.at(0).format_dtype, "F6_E2M3");
  const auto load = [&](LoadOptions options) {
    return errors_on(2, [&](const Communicator& world) {
      load_state(folder / "x.safetensors", world, {{"x", at::zeros({4})}}, options);
    });
  };
  expect_error(load({}), {"'x' is F6_E2M3 in the checkpoint, Float in the target"});
  expect_error(load({.allow_cast = true}), {"'x' is F6_E2M3 in the checkpoint, Float in the target"});
}

}  // namespace
}  // namespace dtensor::test
