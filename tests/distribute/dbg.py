import json, sys, time, os
from pathlib import Path
def bench(folder):
    import numpy as np, tensorflow as tf, keras
    from sparkdl.distribute import strategies, keras3
    size=float(os.environ["PACK"])
    o=tf.distribute.experimental.CommunicationOptions(bytes_per_pack=int(size*2**20))
    st=tf.distribute.MultiWorkerMirroredStrategy(communication_options=o)
    keras3.correct()
    with st.scope():
        m=keras.Sequential([keras.layers.Input((1000,)),keras.layers.Dense(4000,activation="relu"),keras.layers.Dense(4000,activation="relu"),keras.layers.Dense(1200,activation="relu"),keras.layers.Dense(10)])
        m.compile(keras.optimizers.SGD(0.001),"mse")
    x=np.random.rand(128*4,1000).astype("float32"); y=np.random.rand(128*4,10).astype("float32")
    d=tf.data.Dataset.from_tensor_slices((x,y)).batch(128).cache().repeat()
    m.fit(d,steps_per_epoch=3,verbose=0)
    ts=[]
    for _ in range(4):
        t=time.perf_counter(); m.fit(d,steps_per_epoch=10,verbose=0); ts.append(round((time.perf_counter()-t)*100))
    return [m.count_params(), ts]
Path(sys.argv[2], sys.argv[3]+".json").write_text(json.dumps(bench(Path(sys.argv[2]))))
