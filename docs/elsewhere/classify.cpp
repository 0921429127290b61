// Says what is on pictures, with export/model.ts and LibTorch alone (C++20):
//
//     classify model.ts picture.pgm…      a binary PGM (grey) or PPM (RGB) of the model's size
//
// Built against the LibTorch that comes with pip's torch, whose folder $T is `python -c 'import torch; print(torch.__path__[0])'`:
//
//     g++ -std=c++20 -I$T/include -I$T/include/torch/csrc/api/include classify.cpp -o classify
//         -L$T/lib -Wl,-rpath,$T/lib -Wl,--unresolved-symbols=ignore-in-shared-libs -ltorch -ltorch_cpu -lc10
#include <fstream>
#include <iostream>
#include <sstream>
#include <torch/script.h>

int main(int argc, char** argv) {
    torch::jit::ExtraFilesMap extra{{"classes.txt", ""}};  // darkroom.json beside it says the rest
    auto model = torch::jit::load(argv[1], torch::kCPU, extra);
    std::vector<std::string> classes;
    std::istringstream lines(extra["classes.txt"]);
    for (std::string line; std::getline(lines, line);) classes.push_back(line);
    torch::InferenceMode guard;
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        std::string kind;
        int64_t width = 0, height = 0, highest = 0;
        file >> kind >> width >> height >> highest;
        auto picture = torch::empty({1, height, width, kind == "P6" ? 3 : 1}, torch::kUInt8);
        file.ignore().read(static_cast<char*>(picture.data_ptr()), picture.numel());
        auto answers = model.forward({picture.permute({0, 3, 1, 2}).contiguous()}).toTuple();
        auto [probability, place] = answers->elements()[1].toTensor()[0].max(0);
        std::cout << argv[i] << '\t' << classes.at(place.item<int64_t>()) << '\t' << probability.item<float>() << '\n';
    }
}
