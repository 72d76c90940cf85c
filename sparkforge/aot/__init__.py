"""FlashInfer's modules for one model, compiled ahead of time from the patched sources: the AOT step of `invoke build`.

A build gives a folder of the store (`modules.BuiltModules.folder`), which the checks read:

    NAME/NAME.so     each module, as FlashInfer looks for it below its directory of ahead-of-time modules
    aot.json         `module_facts.AotFacts`: what was built, from what, by what

`aot.json` holds

    format       2
    key          hash of the names and contents of all modules
    platform     linux/arm64
    archs        ["12.1f"]
    tree         git tree id of the FlashInfer sources that were compiled
    toolchain    identity of compiler, headers and host compiler, with `versions` in words
    modules      for each: name, file (NAME/NAME.so), sha256, size in bytes, exports (functions that TVM-FFI finds),
                 needed (DT_NEEDED), versions (newest symbol version of each family), sources (hash over (path, sha256)
                 of every file of FlashInfer that was read), link_seconds
    units        for each source: module, path, object (key), seconds, cpu_seconds, peak_bytes, size, reads (number of
                 files of FlashInfer that it read)
    reads        {path: sha256} of all files of FlashInfer that any unit read, paths below the package's folder
    left_out     {module: [part, ...]}: modules that were not compiled, since only these parts need them

In an image the modules are in site-packages/flashinfer/data/aot/<first 16 digits of key>/NAME/NAME.so; beside that
folder `<tree>` is a link to it, and the patched FlashInfer (F-01) looks only below the id of its own tree. The label
dev.sparkforge.aot and `aot` in /opt/sparkforge/manifest.json hold `key`, or `none` where an image has no modules. The
manifest also has `aot_modules` {name: sha256}, `aot_left_out` {name: why} and `parts_left_out` {part: [name, ...]}.
"""
